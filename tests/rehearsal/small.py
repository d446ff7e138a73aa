"""Programs that measure or train for long, and with which options each takes little time.

By name; `convergence.py`, which has commands, with these.
"""

_OPS = "--threads 1 --rounds 1 --repeats 1"
_NETWORK = "--seeds 1 --hours 0.02 --depth 2 --width 32"

BENCHMARKS = {
    "encode.py": _OPS,
    "threshold_ops.py": _OPS,
    "transforms.py": _OPS,
    "keras_programs.py": "--seeds 1 --programs forecast",
    "data_rate.py": "--rounds 1",
    "automatic.py": "--interval 64000 --plot {folder}/{{}}.png",
    "monitor.py": "--steps 10 --rounds 1",
    "endurance.py": "--steps 100",
    "endurance.py --engine mirrored": "--steps 100",
    "convergence.py": "--seeds 1 --preset tiny",
    "convergence.py threshold": f"--tables 2 {_NETWORK}",
    "convergence.py asynchronous": "--seeds 1 --workers 2 --preset tiny --hours 0.1",
    "convergence.py bmuf": f"--tables compressed --minibatches 10240 --learning-rates 0.0005 "
    f"{_NETWORK}",
    "convergence.py tables": f"--tables 000-2 --passes 1 --svd-rank 8 {_NETWORK}",
}
# These make hosts out of network namespaces.
OF_NETWORKS = {
    "collectives.py": "--rate none --bytes 4096 --repetitions 2",
    "step.py": "--rate none --steps 1 --rounds 1 --warm-up-steps 2",
    "double_buffering.py": "--engine tensorflow --slow-rate 100mbit --steps 1 --rounds 1",
    "block.py": "--rate none --steps 16 --turns 1 --rows 0",
    "asynchronous.py": "--workers 2 --rate none --rounds 1 --seconds 1 --warm-up-steps 5",
    "plan.py": "--rate none --workers 2 --steps 1 --method 1-bit",
}
# Who starts a benchmark, see `tests.parallel.launch`, where it does not do so itself.
STARTED_BY = {"monitor.py": "horovod", "endurance.py": "tensorflow"}

PROGRAMS = {f"benchmarks/{name}" for name in (*BENCHMARKS, *OF_NETWORKS, "network.py")}
PROGRAMS |= {"examples/speech/compare.py"}
