"""The code in README and the pages of docs: blocks, spans, and commands in them."""

import dataclasses
import re
import shlex

from tests.support.programs import ROOT

PATHS = [
    *(ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")),
    ROOT / "benchmarks" / "README.md",
    ROOT / "reproduction" / "README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "examples").glob("*/README.md")),
]
_FENCE = re.compile(r"^```(\S*)[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_INDENTED = re.compile(r"(?:(?<=\n\n)|\A)(?: {4}\S[^\n]*\n)+")
_SPAN = re.compile(r"(?<!`)`([^`]+)`(?!`)")
# The beginnings of spans that are commands.
_COMMAND = re.compile(
    r"(sudo )?(\.venv/bin/|python |python\d|horovodrun |tf-onebit |make |taskset |perf |pip "
    r"|ssh |srun |[\w/]+\.py( |$))"
)


@dataclasses.dataclass(frozen=True)
class Command:
    """A line of shell.

    Attributes:
        path: of the document.
        words: tuple of strings.
        is_mention: whether it only names a program, and perhaps options, without starting it.
    """

    path: object
    words: tuple
    is_mention: bool = False

    def __str__(self):
        return f"{name_of(self.path)}: {shlex.join(self.words)}"


def name_of(path):
    return str(path.relative_to(ROOT))


def blocks(path, *languages):
    """Returns the fenced blocks of some languages, in their order: list of (line number, text)."""
    text = path.read_text()
    found = [m for m in _FENCE.finditer(text) if m[1] in languages]
    return [(text.count("\n", 0, match.start()) + 2, match[2]) for match in found]


def languages(path):
    return {match[1] for match in _FENCE.finditer(path.read_text())}


def made_by_diffs(path):
    """Returns the names of the programs that the diffs of a document make: set."""
    return set(re.findall(r"^\+\+\+ (\S+)$", path.read_text(), re.MULTILINE))


def spans(path):
    """Returns the code within the text: list of strings, each on one line."""
    return [" ".join(span.split()) for span in _SPAN.findall(_FENCE.sub("", path.read_text()))]


def commands(path):
    """Returns all commands of a document: of blocks without a language, indented ones and spans."""
    shell = [text for _, text in blocks(path, "", "bash", "sh")]
    if name_of(path).startswith("examples"):
        shell += _INDENTED.findall(_FENCE.sub("", path.read_text()))
    lines = [line for text in shell for line in text.replace("\\\n", "").splitlines()]
    found = [Command(path, tuple(shlex.split(line, comments=True))) for line in lines]
    for span in spans(path):
        if _COMMAND.match(span) and "..." not in span:
            words = tuple(shlex.split(span))
            is_mention = words[0].endswith(".py") or (words[0] == "tf-onebit" and len(words) == 2)
            found.append(Command(path, words, is_mention))
    return [command for command in found if command.words]
