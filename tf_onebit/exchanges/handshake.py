"""Comparison of the workers' programs before they first communicate."""

import hashlib
import json
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import tensorflow as tf

from tf_onebit._configurable import serialize
from tf_onebit._version import __version__
from tf_onebit.collectives.requests import AllGather, Exchanging
from tf_onebit.exchanges.arguments import is_excluded
from tf_onebit.exchanges.gradients import GradientSpec
from tf_onebit.exchanges.schedule import AnyExchange

# Tuples of what is described, its value, and words that may differ between workers.
Description: TypeAlias = list[tuple[str, ...]]
_DIGEST_WORDS = 8
_REMEDY = "Start all workers with the same program, arguments and packages."

# One name for all uses, so that workers that are about to do different things still meet here.
_SCOPE = "tf_onebit/handshake"


def enumerated(
    number: str, item: str, values: Sequence[str], names: Sequence[str] = ()
) -> Description:
    """Describes a list: its length, then each value.

    Args:
        number: label of the length, for example "number of gradients".
        item: label of a value, with "{}" for its index.
        values: list of strings.
        names: list of the values' names in the program, for an error.
    """
    items: Description = [(item.format(i), value) for i, value in enumerate(values)]
    if names:
        items = [(*one, f" ({name})") for one, name in zip(items, names, strict=True)]
    return [(number, str(len(values))), *items]


def describe(exchange: AnyExchange, specs: Sequence[GradientSpec], world_size: int) -> Description:
    """Describes what workers must agree on to exchange gradients: see `handshake`.

    Names of variables may differ: a worker may have made more models before, or loaded a model
    that others have built. So gradients that are excluded by name are compared by position.
    """
    settings = serialize(exchange)
    return [
        ("world size", str(world_size)),
        ("exchange", settings["class"]),
        *(
            (f"{key} of the exchange", json.dumps(value, sort_keys=True))
            for key, value in _without_names(settings["config"]).items()
        ),
        *enumerated(
            "number of gradients",
            "gradient {}",
            [_kind(spec, is_excluded(spec.name, exchange)) for spec in specs],
            [spec.name for spec in specs],
        ),
    ]


def _without_names(config: Any) -> Any:
    if not isinstance(config, dict):
        return config
    return {key: _without_names(value) for key, value in config.items() if key != "exclude"}


def _kind(spec: GradientSpec, excluded: bool) -> str:
    marks = f"{', sparse' if spec.sparse else ''}{', excluded' if excluded else ''}"
    return f"{spec.shape} {spec.dtype}{marks}"


def handshake(use: str, description: Description, remedy: str = _REMEDY) -> Exchanging[None]:
    """Generator: compares the workers' descriptions. Runs in eager mode.

    Args:
        use: name in this program of what the workers are about to do.
        description: list of (what, value) or (what, value, words that may differ), all strings.
        remedy: sentence that says what to do if they differ.

    Raises:
        ValueError: on all workers, with the first difference and two workers that differ.
    """
    program = [("version of tf_onebit", __version__), ("next use of tf_onebit", use)]
    description = [*program, *description]
    compared = json.dumps([(what, value) for what, value, *_ in description]).encode()
    text = json.dumps(description).encode()
    digest = np.frombuffer(hashlib.sha256(compared).digest(), np.int32)
    summary = tf.constant([[*map(int, digest), len(text)]], tf.int32)
    summaries = (yield AllGather(summary, f"{_SCOPE}/digest")).numpy()
    if (summaries == summaries[0])[:, :_DIGEST_WORDS].all():
        return
    # The whole texts are gathered only to say what differs.
    texts = yield from gather_texts(text, summaries[:, _DIGEST_WORDS], f"{_SCOPE}/text")
    raise ValueError(f"{_difference(list(map(json.loads, texts)))} {remedy}")


def gather_texts(text: bytes, lengths: Sequence[int], name: str) -> Exchanging[list[bytes]]:
    """Generator: returns the texts of all workers, a list of bytes. Runs in eager mode.

    Args:
        text: bytes of this worker.
        lengths: list of the lengths of all workers' texts in bytes.
        name: name of the collective.
    """
    words = np.zeros([1, -(-max(lengths) // 4)], np.int32)
    words.view(np.uint8)[0, : len(text)] = np.frombuffer(text, np.uint8)
    gathered = (yield AllGather(tf.constant(words), name)).numpy()
    return [row.tobytes()[:length] for row, length in zip(gathered, lengths, strict=True)]


def _difference(descriptions: Sequence[Description]) -> str:
    rank, mine, theirs = next(
        (rank, mine, theirs)
        for rank, other in enumerate(descriptions)
        for mine, theirs in zip(descriptions[0], other, strict=False)
        if mine[:2] != theirs[:2]
    )
    return (
        "All workers must train the same model in the same way. "
        f"The first difference: rank 0 has {_shown(*mine)}, rank {rank} has {_shown(*theirs)}."
    )


def _shown(what: str, value: str, more: str = "") -> str:
    return f"{what} = {value}{more}"
