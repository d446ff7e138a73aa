"""The list "To Horovod" of docs/porting.md: one function for each rule, in its order."""

import ast
from collections.abc import Iterator

from tf_onebit._check import files, own_steps, suggestions
from tf_onebit._check.callbacks import average_metrics, begin_alike, write_callbacks_on_one_worker
from tf_onebit._check.finding import Finding
from tf_onebit._check.loops import exchange_outside, keras_variables, wrap_the_tape
from tf_onebit._check.optimizers import wrap_optimizers
from tf_onebit._check.program import Program, keyword
from tf_onebit._check.shares import seed_for_batches, share_the_data
from tf_onebit._check.training import compiles, fits
from tf_onebit._check.uses import (
    is_script,
    own_modules,
    own_strategies,
    tf_strategies,
    uses_horovod,
)


def start_horovod(program: Program) -> Iterator[Finding]:
    """Yields where a program without Horovod starts it."""
    if not uses_horovod(program):
        yield Finding(
            suggestions.last_import(program),
            "Start Horovod after this line.",
            "Only then does a worker know its number, and all other calls need it.",
            "Horovod 1",
            [*suggestions.new_imports(program, "tf_onebit", "hvd"), "hvd.init()"],
        )
    elif not program.calls_of_method("init") and is_script(program) and not own_modules(program):
        hvd = suggestions.hvd(program)
        yield Finding(
            suggestions.last_import(program),
            f"Call {hvd}.init() before all other calls of {hvd}.",
            "Only then does a worker know its number.",
            "Horovod 1",
            [f"{hvd}.init()"],
        )


def remove_strategies(program: Program) -> Iterator[Finding]:
    """Yields strategies in a program that shall use Horovod only."""
    if uses_horovod(program) and own_strategies(program):
        return  # It has both, and chooses when it runs.
    for call in (*own_strategies(program), *tf_strategies(program)):
        yield Finding(
            call.lineno,
            "Remove this strategy, and its scope.",
            "Over Horovod, each process trains by itself and exchanges gradients. "
            "Or stay with a strategy: --to strategy.",
            "Horovod 1",
        )


def pin_gpus(program: Program) -> Iterator[Finding]:
    """Yields lines about GPUs in a program that does not pin one to each process."""
    touched = [call for call in program.calls if _touches_gpus(program, call)]
    pinned = any("local_rank" in ast.unparse(call) for call in program.calls)
    if touched and not pinned:
        hvd = suggestions.hvd(program)
        tf = program.local_name("tensorflow") or "tf"
        yield Finding(
            touched[0].lineno,
            "Pin a GPU to each process, before TensorFlow uses any.",
            "Otherwise all processes of a host take all of its GPUs.",
            "Horovod 2",
            [
                f'gpus = {tf}.config.list_physical_devices("GPU")',
                f'{tf}.config.set_visible_devices(gpus[{hvd}.local_rank()], "GPU")',
            ],
        )


def _touches_gpus(program: Program, call: ast.Call) -> bool:
    called = program.called(call)
    if called.endswith("experimental.set_memory_growth"):
        return True
    about = called in ("tensorflow.config.set_visible_devices", "tensorflow.device")
    return about and "GPU" in ast.unparse(call).upper()


def compile_without_xla(program: Program) -> Iterator[Finding]:
    """Yields models that Keras may compile by XLA, in a program that touches GPUs."""
    if not any(_touches_gpus(program, call) for call in program.calls):
        return
    for call in compiles(program):
        if keyword(call, "jit_compile") is None and not any(
            one.arg is None for one in call.keywords
        ):
            yield Finding(
                call.lineno,
                "Pass jit_compile=False to compile.",
                "On a GPU Keras may choose XLA, which cannot compile an exchange.",
                "Horovod 2",
                ["jit_compile=False,"],
            )


def print_on_one_worker(program: Program) -> Iterator[Finding]:
    """Yields progress bars of all workers."""
    for fit in fits(program):
        verbose = keyword(fit, "verbose")
        if isinstance(verbose, ast.Constant) and verbose.value in (1, True, "auto"):
            yield Finding(
                verbose.lineno,
                "Show the progress of one worker.",
                "Otherwise the progress bars of all workers are mixed.",
                "Horovod 10",
                [f"verbose=1 if {suggestions.hvd(program)}.rank() == 0 else 0,"],
            )


def write_files_on_one_worker(program: Program) -> Iterator[Finding]:
    """Yields lines that write a file on every worker."""
    condition = f"if {suggestions.hvd(program)}.rank() == 0:"
    yield from files.written_by_all(program, condition, "Horovod 9")


def save_all_of_the_state(program: Program) -> Iterator[Finding]:
    """Yields Keras' own backups."""
    yield from files.backups_of_keras(program, "Horovod 9")


RULES = (
    remove_strategies,
    start_horovod,
    pin_gpus,
    compile_without_xla,
    seed_for_batches,
    wrap_optimizers,
    share_the_data,
    begin_alike,
    average_metrics,
    write_callbacks_on_one_worker,
    write_files_on_one_worker,
    save_all_of_the_state,
    print_on_one_worker,
    own_steps.apply_gradients,
    wrap_the_tape,
    exchange_outside,
    keras_variables,
)
# The rules about what workers do in every step. In blocks each worker makes its steps alone.
OF_EVERY_STEP = (
    compile_without_xla,
    begin_alike,
    average_metrics,
    wrap_the_tape,
    exchange_outside,
    keras_variables,
)
