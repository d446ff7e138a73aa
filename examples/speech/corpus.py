"""Spoken utterances with their phone alignment: voice, text, manner of speaking and noise."""

import dataclasses

import espeak
import features
import numpy as np
import prose

ACCENTS = ("en-us", "en-us-nyc", "en", "en-gb-x-rp", "en-gb-scotland", "en-029")
TRAINING_VOICES = tuple(
    "m1 m2 m3 m4 m7 m8 f1 f2 f3 f4 Alex Andrea Annie Denis Diogo Gene Henrique Jacky Mike Storm "
    "aunty belinda ed grandpa klatt2 marcelo paul pedro rob shelby victor zac".split()
)
HELD_OUT_VOICES = tuple("m6 f5 Alicia Nguyen grandma klatt4 linda quincy".split())
# Decisions during training use these voices, not those of the reported accuracy.
DEVELOPMENT_VOICES = tuple("m5 steph benjamin Michael".split())
HELD_OUT_DOCUMENTS = 0.1

WORDS_PER_MINUTE = (130, 220)
PITCH_PERCENT = (25, 75)
GAIN_DB = (-6.0, 6.0)
NOISE_SNR_DB = (10.0, 40.0)
NOISE_SPECTRAL_SLOPE = (0.0, 2.0)  # power ~ 1 / frequency^slope: white to brown


@dataclasses.dataclass(frozen=True)
class Utterance:
    """The features of one sentence and the phone of every frame.

    Attributes:
        features: float32 array `[frames, MEL_FILTERS]`.
        segments: int32 array `[frames]`. Index into `phones` of the segment that contains the
            middle of the frame.
        positions: float32 array `[frames]`. Position in that segment, from 0 (start) to 1 (end).
        phones: list of str. The phones of the sentence, pauses included.
    """

    features: np.ndarray
    segments: np.ndarray
    positions: np.ndarray
    phones: list


def split_sentences(seed):
    """Returns shuffled training and held-out sentences, from documents of their own.

    Args:
        seed: int. Decides which documents are held out, and the order.
    """
    documents = prose.documents()
    generator = np.random.default_rng(seed)
    names = generator.permutation(sorted(documents)).tolist()
    held_out_count = round(HELD_OUT_DOCUMENTS * len(names))
    held_out = [s for name in names[:held_out_count] for s in documents[name]]
    training = [s for name in names[held_out_count:] for s in documents[name]]
    return generator.permutation(training).tolist(), generator.permutation(held_out).tolist()


def add_noise(speech, snr_db, spectral_slope, generator):
    """Adds noise of a falling spectrum at a ratio to the mean power of the speech."""
    length = 2 ** int(np.ceil(np.log2(len(speech))))  # a fast length for the transforms
    spectrum = np.fft.rfft(generator.standard_normal(length))
    spectrum[0] = 0
    spectrum[1:] *= np.arange(1, len(spectrum)) ** (-spectral_slope / 2)
    noise = np.fft.irfft(spectrum)[: len(speech)]
    return speech + noise * np.sqrt(np.mean(speech**2) / np.mean(noise**2)) * 10 ** (-snr_db / 20)


def align(starts, sample_count, sample_rate_hz):
    """Finds the segment of every frame, and where in the segment the frame's middle lies.

    Args:
        starts: int array `[segments]`, increasing, the first one 0: first sample of each segment.
        sample_count: int. Where the last segment ends.
        sample_rate_hz: int.

    Returns:
        segments: int32 array `[frames]`.
        positions: float32 array `[frames]` in [0, 1).
    """
    centers = features.frame_centers(sample_count, sample_rate_hz)
    segments = np.searchsorted(starts, centers, side="right") - 1
    lengths = np.diff(np.append(starts, sample_count))
    positions = (centers - starts[segments]) / lengths[segments]
    return segments.astype(np.int32), positions.astype(np.float32)


def record(variant, sentences, seconds, seed):
    """Lets one voice read sentences, in its accents, speeds, pitches and noises.

    Must run in a process of its own to be repeatable (see `espeak.Synthesizer`).

    Args:
        variant: str. One of `TRAINING_VOICES`, `DEVELOPMENT_VOICES` or `HELD_OUT_VOICES`.
        sentences: list of str. Read from the start again when they do not last.
        seconds: float. Reading ends with the sentence that reaches this length.
        seed: int.

    Returns:
        List of `Utterance`.
    """
    generator = np.random.default_rng(seed)
    synthesizer = espeak.Synthesizer(seed)
    rate_hz = synthesizer.sample_rate_hz
    utterances = []
    remaining_samples = seconds * rate_hz
    while remaining_samples > 0:
        samples, starts, phones = synthesizer.speak(
            sentences[len(utterances) % len(sentences)],
            f"{generator.choice(ACCENTS)}+{variant}",
            words_per_minute=int(generator.integers(*WORDS_PER_MINUTE)),
            pitch_percent=int(generator.integers(*PITCH_PERCENT)),
        )
        speech = samples / 32768 * 10 ** (generator.uniform(*GAIN_DB) / 20)
        noisy = add_noise(
            speech,
            generator.uniform(*NOISE_SNR_DB),
            generator.uniform(*NOISE_SPECTRAL_SLOPE),
            generator,
        )
        segments, positions = align(starts, len(samples), rate_hz)
        utterances.append(Utterance(features.log_mel(noisy, rate_hz), segments, positions, phones))
        remaining_samples -= len(samples)
    return utterances
