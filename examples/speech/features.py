"""Log-mel filterbank features: 25 ms windows every 10 ms."""

import functools

import numpy as np

WINDOW_SECONDS = 0.025
HOP_SECONDS = 0.010
MEL_FILTERS = 40
LOWEST_HZ, HIGHEST_HZ = 64.0, 8000.0
FFT_LENGTH = 1024
# Approximate quantization noise of 16-bit samples in one filter. It keeps the logarithm of digital
# silence finite.
POWER_FLOOR = 1e-7


def frame_starts(sample_count, sample_rate_hz):
    """Returns the first sample of every frame that lies within the signal, as an int64 array."""
    hop = HOP_SECONDS * sample_rate_hz
    window = round(WINDOW_SECONDS * sample_rate_hz)
    count = max(0, 1 + int((sample_count - window) // hop))
    return np.round(np.arange(count) * hop).astype(np.int64)


def frame_centers(sample_count, sample_rate_hz):
    """Returns the sample in the middle of every frame, as an int64 array."""
    window = round(WINDOW_SECONDS * sample_rate_hz)
    return frame_starts(sample_count, sample_rate_hz) + window // 2


@functools.cache
def mel_filters(sample_rate_hz):
    """Returns the triangular filters `[FFT_LENGTH // 2 + 1, MEL_FILTERS]`, each of peak 1.

    The corners are equidistant on the mel scale, mel = 2595 log10(1 + f / 700).
    """
    lowest, highest = 2595 * np.log10(1 + np.array([LOWEST_HZ, HIGHEST_HZ]) / 700)
    corners_hz = 700 * (10 ** (np.linspace(lowest, highest, MEL_FILTERS + 2) / 2595) - 1)
    bins_hz = np.fft.rfftfreq(FFT_LENGTH, 1 / sample_rate_hz)[:, None]
    rising = (bins_hz - corners_hz[:-2]) / (corners_hz[1:-1] - corners_hz[:-2])
    falling = (corners_hz[2:] - bins_hz) / (corners_hz[2:] - corners_hz[1:-1])
    return np.maximum(0, np.minimum(rising, falling)).astype(np.float32)


def log_mel(samples, sample_rate_hz):
    """Computes log-mel features.

    Args:
        samples: float array `[count]`, full scale 1.
        sample_rate_hz: int.

    Returns:
        float32 array `[frames, MEL_FILTERS]`: natural logarithms of the power in each filter.
    """
    window = np.hamming(round(WINDOW_SECONDS * sample_rate_hz)).astype(np.float32)
    starts = frame_starts(len(samples), sample_rate_hz)
    frames = np.asarray(samples, np.float32)[starts[:, None] + np.arange(len(window))] * window
    power = np.abs(np.fft.rfft(frames, FFT_LENGTH)) ** 2 / len(window)
    return np.log(power.astype(np.float32) @ mel_filters(sample_rate_hz) + POWER_FLOOR)
