"""The speech corpus as arrays of frames and targets, made once and cached on disk.

`python examples/speech/dataset.py --hours 1` makes a corpus, unless it exists already.
"""

import argparse
import collections
import contextlib
import dataclasses
import fcntl
import hashlib
import importlib.metadata
import json
import multiprocessing
import os
import pathlib
import platform
import shutil
import subprocess
import sys
import tempfile
import time

import corpus
import numpy as np
from targets import NO_TARGET, Targets, frame_states, state_contexts

CONTEXT_FRAMES = 5  # on either side: windows of 11 frames


@dataclasses.dataclass(frozen=True)
class Settings:
    """Settings that determine the content of the corpus.

    Attributes:
        hours: float. Speech to train on.
        held_out_minutes: float. Speech of other voices and texts, to evaluate on. Decisions during
            training use as much speech of further voices.
        target_count: int. The largest number of context-dependent phone states.
        seed: int.
    """

    hours: float = 2.0
    held_out_minutes: float = 6.0
    target_count: int = 1200
    seed: int = 1


@dataclasses.dataclass(frozen=True)
class Split:
    """Frames of many utterances in a row, each with `CONTEXT_FRAMES` edge frames around it.

    Attributes:
        frames: float32 array `[rows, MEL_FILTERS]`, normalized by the training data's statistics.
        targets: int32 array `[rows]`. `NO_TARGET` for rows that are only context.
    """

    frames: np.ndarray
    targets: np.ndarray


_SPLIT_FIELDS = dataclasses.fields(Split)
_SPLITS = ("training", "development", "held_out")


def load(settings):
    """Returns `(training, held_out, targets)`, two `Split` and `Targets`. Makes them if needed.

    Any number of processes may call this at once. One makes the corpus, the others wait for it.
    """
    folder = _folder_of(settings)
    names = json.loads((folder / "targets.json").read_text())
    targets = Targets([tuple(name) for name in names])
    return _load_split(folder, "training"), _load_split(folder, "held_out"), targets


def load_development(settings):
    """Returns the `Split` for decisions during training, made as by `load`."""
    return _load_split(_folder_of(settings), "development")


def _folder_of(settings):
    folder = _cache_folder(settings)
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with _locked(folder.with_suffix(".lock")):
            if not folder.exists():
                _make_in_own_process(settings)
    return folder


def _load_split(folder, name):
    files = (folder / f"{name}_{field.name}.npy" for field in _SPLIT_FIELDS)
    return Split(*(np.load(file, mmap_mode="r") for file in files))


def _cache_folder(settings):
    root = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache")
    values = [field.type(getattr(settings, field.name)) for field in dataclasses.fields(Settings)]
    made_of = hashlib.sha256(repr(values).encode())
    for version in (platform.python_version(), np.__version__):
        made_of.update(version.encode())
    made_of.update(importlib.metadata.version("espeakng-loader").encode())
    for name in ("prose", "espeak", "corpus", "features", "targets", "dataset"):
        made_of.update((pathlib.Path(__file__).parent / f"{name}.py").read_bytes())
    return root / "tf_onebit" / "speech" / made_of.hexdigest()[:16]


@contextlib.contextmanager
def _locked(path):
    with open(path, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _make_in_own_process(settings):
    """Runs this file: the pool of synthesizers must not inherit TensorFlow or Horovod."""
    options = [f"--{k.replace('_', '-')}={v}" for k, v in dataclasses.asdict(settings).items()]
    subprocess.run([sys.executable, __file__, *options], check=True)


def make(settings, folder):
    """Makes the corpus and moves it to `folder` when it is complete."""
    training, *others = _record_all(settings)
    counts = collections.Counter()
    for utterance in training:
        contexts = state_contexts(utterance.phones)
        states = frame_states(utterance.segments, utterance.positions)
        frames = np.bincount(states, minlength=len(contexts)).tolist()
        for context, count in zip(contexts, frames, strict=True):
            counts[context] += count
    targets = Targets.from_counts(counts, settings.target_count)

    every_frame = np.concatenate([u.features for u in training])
    mean, deviation = every_frame.mean(axis=0), every_frame.std(axis=0)
    unfinished = pathlib.Path(tempfile.mkdtemp(dir=folder.parent))
    try:
        for name, utterances in zip(_SPLITS, (training, *others), strict=True):
            split = _join(utterances, targets, mean, deviation)
            for field in _SPLIT_FIELDS:
                np.save(unfinished / f"{name}_{field.name}.npy", getattr(split, field.name))
        (unfinished / "targets.json").write_text(json.dumps(targets.names))
        os.replace(unfinished, folder)
    except BaseException:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise


def _record_all(settings):
    """Returns the utterances of the voices of each of `_SPLITS`: list of lists."""
    training_sentences, held_out_sentences = corpus.split_sentences(settings.seed)
    first_seed = 1000 * settings.seed  # each voice has its own, each corpus has others
    # One thread each: the processes share the cores, and sums keep the same order.
    os.environ["OPENBLAS_NUM_THREADS"] = "1"
    with multiprocessing.get_context("spawn").Pool(os.cpu_count(), maxtasksperchild=1) as pool:
        training = _record(
            pool, corpus.TRAINING_VOICES, training_sentences, settings.hours * 3600, first_seed
        )
        first_seed += len(corpus.TRAINING_VOICES)
        seconds = settings.held_out_minutes * 60
        held_out = _record(pool, corpus.HELD_OUT_VOICES, held_out_sentences, seconds, first_seed)
        first_seed += len(corpus.HELD_OUT_VOICES)
        development = _record(
            pool, corpus.DEVELOPMENT_VOICES, held_out_sentences, seconds, first_seed
        )
    return training, development, held_out


def _record(pool, voices, sentences, seconds, first_seed):
    readings = [
        (voice, sentences[reader :: len(voices)], seconds / len(voices), first_seed + reader)
        for reader, voice in enumerate(voices)
    ]
    recorded = pool.starmap(corpus.record, readings, chunksize=1)
    return [utterance for utterances in recorded for utterance in utterances]


def _join(utterances, targets, mean, deviation):
    edges = (CONTEXT_FRAMES, CONTEXT_FRAMES)
    frames, numbers = [], []
    for u in utterances:
        frames.append(np.pad((u.features - mean) / deviation, (edges, (0, 0)), mode="edge"))
        of_states = np.array([targets.number(*context) for context in state_contexts(u.phones)])
        of_frames = of_states[frame_states(u.segments, u.positions)]
        numbers.append(np.pad(of_frames, edges, constant_values=NO_TARGET))
    return Split(
        np.concatenate(frames).astype(np.float32), np.concatenate(numbers).astype(np.int32)
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    for field in dataclasses.fields(Settings):
        option = f"--{field.name.replace('_', '-')}"
        parser.add_argument(option, type=field.type, default=field.default)
    settings = Settings(**vars(parser.parse_args()))
    folder = _cache_folder(settings)
    if folder.exists():
        print(f"the corpus is there already: {folder}")
        return
    print(f"making a corpus of {settings.hours:g} h of speech, once, in {folder}", flush=True)
    started = time.monotonic()
    folder.parent.mkdir(parents=True, exist_ok=True)
    make(settings, folder)
    print(f"made in {time.monotonic() - started:.0f} s", flush=True)


if __name__ == "__main__":
    main()
