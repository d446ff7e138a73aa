"""English prose that every CPython 3.11 carries: its reference manual and its docstrings."""

import ast
import functools
import pathlib
import re
import sysconfig
from pydoc_data.topics import topics

_NOT_CPYTHON = {"site-packages", "dist-packages", "test", "tests"}
_WORD = r"[A-Z]?[a-z]+(?:['-][a-z]+)*[,;:]?"
_ORDINARY_WORDS = re.compile(rf"{_WORD}(?: {_WORD})*")
_MARKUP = re.compile(r"[`*\"()]")
MIN_WORDS, MAX_WORDS = 5, 30


def sentences(text):
    """Returns the sentences of a text that consist of ordinary words only, without markup.

    Code, tables and sentences with identifiers, numbers or formulas are left out, because a
    speech synthesizer would spell them.

    Args:
        text: str. Paragraphs separated by blank lines.

    Returns:
        List of str of `MIN_WORDS` to `MAX_WORDS` words, each ending in a full stop.
    """
    found = []
    for paragraph in re.split(r"\n\s*\n", text):
        joined = _MARKUP.sub("", " ".join(paragraph.split()))
        for sentence in re.findall(r"[^.!?]+\.(?= |$)", joined):
            words = sentence.strip(" .")
            if _ORDINARY_WORDS.fullmatch(words) and words[0].isupper():
                if MIN_WORDS <= len(words.split()) <= MAX_WORDS:
                    found.append(words + ".")
    return found


def _docstrings(node):
    yield ast.get_docstring(node) or ""
    for child in node.body:
        if isinstance(child, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            yield from _docstrings(child)


@functools.cache
def documents():
    """Returns the sentences of each document: a manual topic or a standard library module.

    Returns:
        Dict of document name to list of sentences. A sentence belongs to the first document that
        has it, so no two documents share one.
    """
    texts = {f"manual/{name}": text for name, text in sorted(topics.items())}
    library = pathlib.Path(sysconfig.get_path("stdlib"))
    for path in sorted(library.rglob("*.py")):
        module = path.relative_to(library)
        if not _NOT_CPYTHON.intersection(module.parts):
            source = ast.parse(path.read_text(encoding="utf-8", errors="replace"))
            texts[f"library/{module.as_posix()}"] = "\n\n".join(_docstrings(source))
    seen = set()
    split = {}
    for name, text in texts.items():
        own = [s for s in dict.fromkeys(sentences(text)) if s not in seen]
        seen.update(own)
        if own:
            split[name] = own
    return split
