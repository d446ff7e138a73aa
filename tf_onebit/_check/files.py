"""Files that every worker of a job would write."""

import ast
from collections.abc import Iterator

from tf_onebit._check.finding import Finding
from tf_onebit._check.flow import depends_on_worker, is_for_some_workers
from tf_onebit._check.program import Program, keyword
from tf_onebit._check.training import models, receiver
from tf_onebit._check.uses import holds_models_together

_SAVES = ("export", "save", "save_weights")
_WRITERS = (
    *("keras.saving.save_model", "numpy.save", "numpy.savez", "numpy.savez_compressed"),
    *("numpy.savetxt", "matplotlib.pyplot.savefig"),
)
_WRITING = set("wax")


def written_by_all(program: Program, condition: str, item: str) -> Iterator[Finding]:
    """Yields lines that write a file on every worker.

    Args:
        program: the program.
        condition: the line that lets one worker pass.
        item: of the list in docs/porting.md.
    """
    trained = set() if holds_models_together(program) else models(program)
    for call in program.calls:
        if not _writes(program, call, trained) or is_for_some_workers(program, call):
            continue
        path = keyword(call, "filepath", int(program.called(call) == "keras.saving.save_model"))
        if path is not None and depends_on_worker(program, path):
            continue
        statement = program.statement(call)
        source = [f"    {line}" for line in program.rewritten(statement, {})]
        yield Finding(
            call.lineno,
            "Write this file on one worker.",
            "All workers run this line, and would write the same file at the same time.",
            item,
            [condition, *(source if isinstance(statement, ast.Expr) else ["    ..."])],
        )


def _writes(program: Program, call: ast.Call, trained: set[str]) -> bool:
    if program.called(call) in _WRITERS:
        return True
    if isinstance(call.func, ast.Name) and call.func.id == "open":
        mode = keyword(call, "mode", 1)
        text = mode.value if isinstance(mode, ast.Constant) else ""
        return isinstance(text, str) and bool(_WRITING & set(text))
    is_method = isinstance(call.func, ast.Attribute) and call.func.attr in _SAVES
    return is_method and receiver(call) in trained and bool(call.args or call.keywords)


def backups_of_keras(program: Program, item: str) -> Iterator[Finding]:
    """Yields the callbacks of Keras that back up a job."""
    for call in program.calls_of("keras.callbacks.BackupAndRestore"):
        path = keyword(call, "backup_dir", 0)
        given = program.text(path) if path is not None else '"backups"'
        yield Finding(
            call.lineno,
            "Back up with the callback of tf_onebit.",
            "Keras' own does not save residuals, the parts of gradients that were not sent yet.",
            item,
            [f"tf_onebit.callbacks.BackupAndRestore({given}, save_freq=1000)"],
        )
