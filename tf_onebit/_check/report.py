"""The report on a program: its findings in the order of lines, and what comes next."""

from collections.abc import Iterator, Sequence

from tf_onebit._check import blocks, horovod, optimizers, stock_horovod, strategy, unsupported
from tf_onebit._check.finding import Finding, Rule
from tf_onebit._check.program import Program, has_hidden_arguments
from tf_onebit._check.training import compiles, fits, own_batches
from tf_onebit._check.uses import (
    Way,
    is_script,
    own_modules,
    own_strategies,
    tf_strategies,
    uses_both,
    uses_horovod,
    way_of,
)

_ALWAYS: Sequence[Rule] = unsupported.RULES
_EXCHANGED: Sequence[Rule] = (unsupported.no_xla, optimizers.known_optimizers)
RULES: dict[Way, Sequence[Rule]] = {
    "strategy": (*_ALWAYS, *_EXCHANGED, *strategy.RULES),
    "horovod": (
        *_ALWAYS,
        *_EXCHANGED,
        *stock_horovod.RULES,
        *horovod.RULES,
        optimizers.plain_sgd_for_asynchronous_workers,
    ),
    "blocks": (*_ALWAYS, *stock_horovod.RULES, *blocks.RULES),
}


def findings(program: Program, to: Way | None = None) -> list[Finding]:
    """Returns what to change, in the order of lines.

    Args:
        program: the program.
        to: how workers shall train, or None for the way that the program uses.
    """
    way = to or way_of(program)
    program.in_blocks = way == "blocks"
    found = [finding for rule in RULES[way] for finding in rule(program)]
    return sorted(found, key=lambda finding: finding.line)


def report_on(program: Program, to: Way | None = None) -> tuple[list[str], int]:
    """Returns the lines of the report, and the exit status."""
    way = to or way_of(program)
    found = findings(program, way)
    lines = [finding.text(program.path) for finding in found]
    name = {"strategy": "a strategy", "horovod": "Horovod", "blocks": "blocks"}[way]
    what = "it" if is_script(program) else "the program that imports it, like this"
    start = f"Start {what}: {_command(program, way)}"
    if found:
        changes = "1 change" if len(found) == 1 else f"{len(found)} changes"
        lines.append(f"{changes} for {name}. docs/porting.md explains the numbers in brackets.")
    else:
        lines.append(f"Nothing to change was found for {name}. {start}")
    lines += _not_seen(program)
    if found:
        lines.append(start)
    return lines, int(bool(found))


def _command(program: Program, way: Way) -> str:
    strategies = own_strategies(program) or tf_strategies(program)
    over_horovod = way == "horovod" or (way == "blocks" and not strategies)
    if over_horovod or (way == "blocks" and uses_horovod(program)):
        return f"horovodrun -np 2 python {program.path}"
    return f"tf-onebit launch -np 2 -- python {program.path}"


def _not_seen(program: Program) -> Iterator[str]:
    """Yields a line about what the program's text does not show, if there is something."""
    stars = [one.module.removesuffix(".*") for one in program.imports if one.local == "*"]
    calls = (*compiles(program), *fits(program))
    lines = {
        "the arguments behind *": [call.lineno for call in calls if has_hidden_arguments(call)],
        "what train_on_batch does": [call.lineno for call in own_batches(program)],
    }
    parts = [f"the modules {', '.join(own)}"] if (own := own_modules(program)) else []
    parts += [f"what comes by * from {', '.join(stars)}"] if stars else []
    parts += ["which lines are for a strategy, and which for Horovod"] if uses_both(program) else []
    parts += [f"{what} (line {_listed(found)})" for what, found in lines.items() if found]
    if parts:
        yield f"Not seen: {'; '.join(parts)}. Go through docs/porting.md for them."


def _listed(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers))
