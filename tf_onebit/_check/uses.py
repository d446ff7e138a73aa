"""Which ways of training on several workers a program already uses."""

import ast
import pathlib
from typing import Literal

from tf_onebit._check.program import Import, Program, is_within, keyword

Way = Literal["strategy", "horovod", "blocks"]
_STOCK = ("horovod.tensorflow", "horovod.keras")


def own_strategies(program: Program) -> list[ast.Call]:
    """Returns the calls that make a strategy of this package."""
    made = program.calls_of("tf_onebit.distribute")
    return [call for call in made if program.called(call).endswith("Strategy")]


def tf_strategies(program: Program) -> list[ast.Call]:
    """Returns the calls that make a strategy of TensorFlow, in a program that makes no other."""
    if own_strategies(program):
        return []
    made = program.calls_of("tensorflow.distribute")
    return [call for call in made if program.called(call).endswith("Strategy")]


def strategy_name(program: Program) -> str:
    """Returns the name of the strategy in the program, or the one that it should get."""
    made = [*own_strategies(program), *tf_strategies(program)]
    return next((name for call in made if (name := program.target(call))), "strategy")


def horovod_imports(program: Program) -> list[Import]:
    """Returns the imports of Horovod or of this package's names for it."""
    packages = ("tf_onebit.horovod", *_STOCK)
    return [
        one
        for one in program.imports
        if one.module == "horovod" or any(is_within(one.module, p) for p in packages)
    ]


def stock_imports(program: Program) -> list[Import]:
    """Returns the imports of Horovod itself, in a program that has it from nowhere else."""
    imports = horovod_imports(program)
    return [] if any(is_within(i.module, "tf_onebit") for i in imports) else imports


def uses_horovod(program: Program) -> bool:
    return bool(horovod_imports(program) or program.calls_of("hvd"))


def uses_both(program: Program) -> bool:
    """Tells whether some models may train in a strategy, and others over Horovod."""
    return uses_horovod(program) and bool(own_strategies(program))


def has_seed(program: Program) -> bool:
    """Tells whether a call sets a seed of Keras or TensorFlow, as far as names tell."""
    for call in program.calls:
        name = program.full_name(call.func) or ast.unparse(call.func)
        if "seed" in name.rpartition(".")[2] and not name.startswith(("numpy.", "random.")):
            return True
    return False


def holds_models_together(program: Program) -> bool:
    """Tells whether groups of workers hold a model together, which changes how it is saved."""
    return bool(program.calls_of("tf_onebit.model_parallel")) or any(
        keyword(call, "model_parallel") is not None for call in own_strategies(program)
    )


def is_script(program: Program) -> bool:
    """Tells whether the module does something when it starts, besides definitions."""
    definitions = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.ClassDef, ast.Assign)
    return any(
        not isinstance(one, definitions)
        and not (isinstance(one, ast.Expr) and isinstance(one.value, ast.Constant))
        for one in program.tree.body
    )


def own_modules(program: Program) -> list[str]:
    """Returns the imported modules that are files beside the program."""
    folder = pathlib.Path(program.path).parent
    roots = dict.fromkeys(one.module.lstrip(".").partition(".")[0] for one in program.imports)
    return [
        root
        for root in roots
        if root not in ("", "tf_onebit")
        and ((folder / f"{root}.py").exists() or (folder / root / "__init__.py").exists())
    ]


def uses_blocks(program: Program) -> bool:
    """Tells whether workers train in blocks, as far as names tell."""
    return bool(program.calls_of("tf_onebit.Local", "tf_onebit.callbacks.BlockMomentum"))


def way_of(program: Program) -> Way:
    """Returns the way that the program uses, or a strategy for one that uses none."""
    over_horovod = uses_horovod(program)
    in_strategy = bool(own_strategies(program) or tf_strategies(program))
    if over_horovod != in_strategy and uses_blocks(program):
        return "blocks"
    return "horovod" if over_horovod and not in_strategy else "strategy"
