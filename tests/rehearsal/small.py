"""Programs that measure or train for long, and how each is run in little time.

By name; `convergence.py`, which has commands, by these as well. Each entry is who starts it (see
`tests.parallel.launch`) and its arguments.
"""

_OPS = ("--threads", "1", "--rounds", "1", "--repeats", "1")
_ONCE = ("--steps", "1", "--rounds", "1")
_NETWORK = ("--depth", "1", "--width", "32")

BENCHMARKS = {
    "encode.py": ("alone", _OPS),
    "threshold_ops.py": ("alone", _OPS),
    "transforms.py": ("alone", _OPS),
    "data_rate.py": ("alone", ("--rounds", "1")),
    "automatic.py": ("alone", ("--interval", "64000", "--plot", "{folder}/{{}}.png")),
    "monitor.py": ("horovod", ("--steps", "10", "--rounds", "1")),
    "endurance.py": ("tensorflow", ("--steps", "100")),
    "endurance.py --engine mirrored": ("alone", ("--steps", "100")),
    "convergence.py": ("alone", ("--preset", "tiny", "--seeds", "1")),
    "convergence.py threshold": (
        "alone",
        ("--tables", "4", "--seeds", "1", "--hours", "0.1", *_NETWORK),
    ),
    "convergence.py asynchronous": (
        "alone",
        ("--workers", "2", "--seeds", "1", "--preset", "tiny", "--hours", "0.1"),
    ),
    "convergence.py bmuf": (
        "alone",
        ("--tables", "compressed", "--seeds", "1", "--minibatches", "10240", "--hours", "0.05")
        + ("--learning-rates", "0.0005", *_NETWORK),
    ),
    "convergence.py tables": (
        "alone",
        ("--tables", "000-2", "--seeds", "1", "--hours", "0.02", "--passes", "1")
        + ("--depth", "2", "--width", "32", "--svd-rank", "8"),
    ),
}

# These make hosts out of network namespaces.
OF_NETWORKS = {
    "network.py": ("alone", ("--rate", "none")),
    "collectives.py": ("alone", ("--rate", "none", "--bytes", "4096", "--repetitions", "2")),
    "step.py": ("alone", ("--rate", "none", "--warm-up-steps", "2", *_ONCE)),
    "double_buffering.py": ("alone", ("--slow-rate", "100mbit", *_ONCE)),
    "block.py": ("alone", ("--rate", "none", "--steps", "16", "--turns", "1", "--rows", "0")),
    "asynchronous.py": (
        "alone",
        ("--workers", "2", "--rate", "none", "--rounds", "1", "--seconds", "1")
        + ("--warm-up-steps", "5"),
    ),
    "plan.py": (
        "alone",
        ("--rate", "none", "--workers", "2", "--steps", "1")
        + ("--method", "full precision", "blocks of 16, 1-bit"),
    ),
}
