"""Context-dependent phone states ("senones"), chosen by counting frames of the training data."""

import collections

from espeak import SILENCE

STATES_PER_PHONE = 3
NO_TARGET = -1

_BROAD_CLASSES = {
    "front vowel": "iIeEa",
    "back vowel": "uUoO0A",
    "central vowel": "@3V",
    "nasal": "mnN",
    "stop": "pbtdkg?",
    "fricative": "fvTDsSzZhx",
    "approximant": "lrwj",
}
_CLASS_OF_LETTER = {letter: name for name, letters in _BROAD_CLASSES.items() for letter in letters}


def broad_class(phone):
    """Returns the manner of articulation of a phone, by the first letter of its name."""
    return _CLASS_OF_LETTER.get(phone[0], SILENCE)


def contexts(phone, state, left, right):
    """Returns the targets that a frame may have, the most specific one first.

    Args:
        phone: str.
        state: int, 0 to `STATES_PER_PHONE - 1`: the first, middle or last part of the phone.
        left, right: str. The phones before and after.

    Returns:
        List of tuples `(phone, state, left context, right context)`.
    """
    if phone == SILENCE:
        return [(SILENCE, 0, "", "")]
    backed_off = [
        (phone, state, left, ""),
        (phone, state, broad_class(left), broad_class(right)),
        (phone, state, "", right),
    ]
    return [(phone, state, left, right), backed_off[state], (phone, state, "", "")]


def state_contexts(phones):
    """Returns `(phone, state, left, right)` of every state of every phone, in order, as a list."""
    neighbours = [SILENCE, *phones, SILENCE]
    return [
        (phone, state, left, right)
        for left, phone, right in zip(neighbours, phones, neighbours[2:], strict=False)
        for state in range(STATES_PER_PHONE)
    ]


def frame_states(segments, positions):
    """Returns the index into `state_contexts` of every frame.

    Args:
        segments: int array `[frames]`. The index of the frame's phone.
        positions: float array `[frames]` in [0, 1]. Where in the phone.
    """
    states = (positions * STATES_PER_PHONE).astype(int)
    return segments * STATES_PER_PHONE + states.clip(0, STATES_PER_PHONE - 1)


def _frequent_contexts(frames_of, min_frames):
    """Gives contexts of `min_frames` frames a target; rarer ones are pooled one level up.

    Args:
        frames_of: dict of the possible targets of a state, as a tuple, to its number of frames.
        min_frames: int.
    """
    chosen = {candidates[-1] for candidates in frames_of}
    rare = frames_of
    for level in range(2):
        pooled = collections.Counter()
        for candidates, frames in rare.items():
            pooled[candidates[min(level, len(candidates) - 1)]] += frames
        chosen |= {context for context, frames in pooled.items() if frames >= min_frames}
        rare = {c: frames for c, frames in rare.items() if not chosen.intersection(c[: level + 1])}
    return sorted(chosen)


class Targets:
    """The outputs of the network: a number for each context that has one of its own.

    Args:
        names: list of tuples as returned by `contexts`.
    """

    def __init__(self, names):
        self.names = names
        self._numbers = {name: number for number, name in enumerate(names)}

    @classmethod
    def from_counts(cls, counts, target_count):
        """Chooses targets with as many frames each as `target_count` of them allow.

        Args:
            counts: dict of `(phone, state, left, right)` to the number of training frames.
            target_count: int. The largest number of targets.
        """
        frames_of = collections.Counter()
        for context, frames in counts.items():
            frames_of[tuple(contexts(*context))] += frames
        fewest, most = 1, sum(counts.values())
        while fewest < most:
            middle = (fewest + most) // 2
            if len(_frequent_contexts(frames_of, middle)) <= target_count:
                most = middle
            else:
                fewest = middle + 1
        names = _frequent_contexts(frames_of, fewest)
        if len(names) > target_count:
            raise ValueError(
                f"target_count must be at least the number of phone states, {len(names)}. "
                f"Received: target_count={target_count}."
            )
        return cls(names)

    def __len__(self):
        return len(self.names)

    def number(self, phone, state, left, right):
        """Returns the target of a state in context, `NO_TARGET` if its phone has none."""
        candidates = contexts(phone, state, left, right)
        return next((self._numbers[c] for c in candidates if c in self._numbers), NO_TARGET)
