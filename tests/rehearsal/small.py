"""Programs that measure or train for long, and options with which they take little time.

Keys are paths, followed by a program's command if it has several.
"""

_OPS = "--threads 1 --rounds 1 --repeats 1"
_NETWORK = "--seeds 1 --hours 0.02 --depth 2 --width 32"
_OPTIMIZERS = "--random --seeds 1 --epochs 1 --workers 2 --optimizers adam --rates 0.001"

ON_THIS_MACHINE = {
    "benchmarks/encode.py": _OPS,
    "benchmarks/threshold_ops.py": _OPS,
    "benchmarks/transforms.py": _OPS,
    "benchmarks/keras_programs.py": "--seeds 1 --programs forecast",
    "benchmarks/data_rate.py": "--rounds 1",
    "benchmarks/automatic.py": "--interval 64000 --plot {folder}/{{}}.png",
    "benchmarks/monitor.py": "--steps 10 --rounds 1",
    "benchmarks/endurance.py": "--steps 100",
    "benchmarks/endurance.py --engine mirrored": "--steps 100",
    "reproduction/convergence.py": "--seeds 1 --preset tiny",
    "reproduction/convergence.py threshold": f"--tables 2 {_NETWORK}",
    "reproduction/convergence.py asynchronous": "--seeds 1 --workers 2 --preset tiny --hours 0.1",
    "reproduction/convergence.py bmuf": "--tables compressed --minibatches 10240 "
    f"--learning-rates 0.0005 {_NETWORK}",
    "reproduction/convergence.py optimizers": _OPTIMIZERS,
    "reproduction/convergence.py optimizers --task cnn": f"--exchanges 1-bit {_OPTIMIZERS}",
    "reproduction/convergence.py optimizers --task transformer": f"--exchanges 1-bit {_OPTIMIZERS}",
    "reproduction/convergence.py curves": "--preset tiny",
    "reproduction/convergence.py tables": f"--tables 000-2 --passes 1 --svd-rank 8 {_NETWORK}",
}
# These make hosts from network namespaces.
IN_NAMESPACES = {
    "benchmarks/collectives.py": "--rate none --bytes 4096 --repetitions 2",
    "benchmarks/step.py": "--rate none --steps 1 --rounds 1 --warm-up-steps 2",
    "benchmarks/double_buffering.py": "--engine tensorflow --slow-rate 100mbit --steps 1 "
    "--rounds 1",
    "benchmarks/block.py": "--rate none --steps 16 --turns 1 --rows 0",
    "benchmarks/scale.py": "--rate none --jobs 2x1 2x2 --exchanges one_bit --hidden 1x64 --steps 1",
    "benchmarks/model_parallel.py": "--rate none --workers 2 --steps 1 --rounds 1 --hidden 2x512",
    "benchmarks/asynchronous.py": "--workers 2 --rate none --rounds 1 --seconds 1 "
    "--warm-up-steps 5",
    "benchmarks/plan.py": "--rate none --workers 2 --steps 1 --method 1-bit",
}
# The launcher of a program that does not start workers itself: see `tests.support.launch`.
STARTED_BY = {"benchmarks/monitor.py": "horovod", "benchmarks/endurance.py": "tensorflow"}

PROGRAMS = {*ON_THIS_MACHINE, *IN_NAMESPACES, "benchmarks/network.py", "examples/speech/compare.py"}
