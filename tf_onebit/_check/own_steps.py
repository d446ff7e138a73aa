"""Training steps of the program's own, in place of Keras'."""

import ast
from collections.abc import Iterator

from tf_onebit._check.finding import Finding
from tf_onebit._check.program import Program
from tf_onebit._check.training import APPLIES, model_classes


def apply_gradients(program: Program) -> Iterator[Finding]:
    """Yields models whose `train_step` changes weights without an optimizer."""
    for model in model_classes(program).values():
        steps = [n for n in model.body if isinstance(n, ast.FunctionDef) and n.name == "train_step"]
        names = {n.attr for n in ast.walk(model) if isinstance(n, ast.Attribute)}
        called = {name for name in names if name.startswith("apply")} | (
            names & {"minimize", "train_step"}
        )
        if steps and not called and "gradient" in names and "assign_sub" in names:
            yield Finding(
                steps[0].lineno,
                "Let an optimizer apply the gradients of this train_step, by its method "
                f"{APPLIES[0]} or {APPLIES[1]}.",
                "Workers exchange gradients there. Otherwise each trains a model of its own.",
                "strategy 9; Horovod 11",
            )
