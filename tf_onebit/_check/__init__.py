"""`tf-onebit check`: which lines of a program to change for training on several workers."""

import argparse
import sys
from typing import Any

from tf_onebit._check.report import report_on
from tf_onebit._check.source import NotAProgram, read
from tf_onebit._check.uses import Way

__all__ = ["add_command", "check"]

DESCRIPTION = """\
Reads a program, which it does not run, and says which lines to change for training on several
workers, and why. The words in brackets name a list and a number in docs/porting.md, or another
page. Tells only what the program's text shows. Ends with status 1 if lines must change, and with 2
if the file is no program that trains with Keras.
"""


def add_command(commands: Any) -> None:
    """Adds `check` to the commands of an `argparse` parser."""
    parser = commands.add_parser(
        "check",
        help="say which lines of a program to change for training on several workers",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("program", help="file of a Python program that trains with Keras")
    parser.add_argument(
        "--to",
        choices=["strategy", "horovod", "blocks"],
        help="how workers shall train (default: as the program does, otherwise in a strategy)",
    )
    parser.set_defaults(run=lambda options: check(options.program, options.to))


def check(path: str, to: Way | None = None) -> int:
    """Prints what to change in a program.

    Args:
        path: of the program.
        to: the `Way` that workers shall train, or None for that of the program.

    Returns:
        The exit status: 0 if there is nothing to change, 1 if there is, 2 for another file.
    """
    try:
        program = read(path)
    except NotAProgram as error:
        print(error, file=sys.stderr)
        return 2
    lines, status = report_on(program, to)
    print(*lines, sep="\n")
    return status
