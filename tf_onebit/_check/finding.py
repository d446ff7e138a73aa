"""Findings of the rules in a program: lines to change, and why."""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from tf_onebit._check.program import Program


class Finding(NamedTuple):
    """Something that a program should change.

    Attributes:
        line: number of the line that it stands at.
        what: the sentences that say what to do.
        why: the sentences that give the reason.
        item: list and number in docs/porting.md.
        write: lines of code to write.
        also: numbers of further lines that change.
    """

    line: int
    what: str
    why: str
    item: str
    write: Sequence[str] = ()
    also: Sequence[int] = ()

    def text(self, path: str) -> str:
        """Returns the lines to print.

        Args:
            path: of the program, as the user gave it.
        """
        first = f"{path}:{self.line}: {self.what} {self.why} [{self.item}]"
        return "\n".join([first, *(f"    {line}" for line in self.write)])


# A function that finds one kind of fault.
Rule = Callable[[Program], Iterator[Finding]]
