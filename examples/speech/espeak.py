"""Speech synthesis with an exact phoneme alignment, by eSpeak NG through ctypes."""

import ctypes

import espeakng_loader
import numpy as np

# Values of espeak-ng/speak_lib.h.
_AUDIO_OUTPUT_SYNCHRONOUS = 2
_INITIALIZE_PHONEME_EVENTS = 1
_EVENT_LIST_TERMINATED, _EVENT_PHONEME = 0, 7
_PARAMETER_RATE, _PARAMETER_PITCH = 1, 3
_CHARS_UTF8 = 1

SILENCE = "_"
_STRESS_MARKS = "'%,=|"


class _Event(ctypes.Structure):
    _fields_ = [
        ("type", ctypes.c_int),
        ("unique_identifier", ctypes.c_uint),
        ("text_position", ctypes.c_int),
        ("length", ctypes.c_int),
        ("audio_position_ms", ctypes.c_int),
        ("sample", ctypes.c_int),
        ("user_data", ctypes.c_void_p),
        ("phoneme", ctypes.c_char * 8),
    ]


_Callback = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.POINTER(_Event)
)


def phone_name(mnemonic):
    """Returns the phone of a phoneme event: without stress marks, every pause as `SILENCE`.

    Args:
        mnemonic: bytes, UTF-8. eSpeak's name of a phoneme, such as `b"'i:"` or `b"_:"`.
    """
    name = mnemonic.decode("utf-8", errors="replace").strip(_STRESS_MARKS)
    return SILENCE if not name.strip("_:;!") else name


class Synthesizer:
    """The eSpeak NG library of this process.

    eSpeak carries state from one call to the next: equal sequences of calls in fresh processes
    give equal samples, single calls do not.

    Args:
        seed: int. Seeds the noise of breathy voices.
    """

    def __init__(self, seed):
        self._library = ctypes.CDLL(espeakng_loader.get_library_path())
        data_path = espeakng_loader.get_data_path().encode()
        self.sample_rate_hz = self._library.espeak_Initialize(
            _AUDIO_OUTPUT_SYNCHRONOUS, 0, data_path, _INITIALIZE_PHONEME_EVENTS
        )
        if self.sample_rate_hz <= 0:
            raise RuntimeError(
                f"eSpeak NG did not start with its data in {data_path!r}. Expected a sample rate. "
                f"Received: {self.sample_rate_hz}. Reinstall the package espeakng-loader."
            )
        self._library.espeak_ng_SetRandSeed(ctypes.c_long(seed))
        self._callback = _Callback(self._receive)  # must outlive the library's use of it
        self._library.espeak_SetSynthCallback(self._callback)

    def _receive(self, samples, count, events):
        if samples and count > 0:
            self._chunks.append(np.ctypeslib.as_array(samples, (count,)).copy())
        index = 0
        while events[index].type != _EVENT_LIST_TERMINATED:
            if events[index].type == _EVENT_PHONEME:
                self._starts.append(events[index].sample)
                self._phones.append(phone_name(events[index].phoneme))
            index += 1
        return 0

    def speak(self, text, voice, words_per_minute=175, pitch_percent=50):
        """Speaks a text.

        Args:
            text: str.
            voice: str. An eSpeak voice, with or without a variant: `"en-us"`, `"en-gb+f3"`.
            words_per_minute: int, 80 to 450.
            pitch_percent: int, 0 to 100.

        Returns:
            samples: int16 array `[count]` at `sample_rate_hz`.
            starts: int64 array `[segments]`, increasing, the first one 0: the sample at which each
                segment starts. The last segment ends with the samples.
            phones: list of `segments` str. Neighbouring segments differ or are two phones.
        """
        self._chunks, self._starts, self._phones = [], [0], [SILENCE]
        if self._library.espeak_SetVoiceByName(voice.encode()) != 0:
            raise ValueError(
                f"voice must be a voice of eSpeak NG such as 'en-us+f3'. Received: voice={voice!r}."
            )
        self._library.espeak_SetParameter(_PARAMETER_RATE, words_per_minute, 0)
        self._library.espeak_SetParameter(_PARAMETER_PITCH, pitch_percent, 0)
        encoded = text.encode()
        self._library.espeak_Synth(
            encoded, ctypes.c_size_t(len(encoded) + 1), 0, 0, 0, _CHARS_UTF8, None, None
        )
        samples = np.concatenate(self._chunks)
        starts, phones = _merge_pauses(self._starts, self._phones, len(samples))
        return samples, starts, phones


def _merge_pauses(starts, phones, sample_count):
    """Drops segments of no length (among them the tail event) and joins successive pauses."""
    ends = [*starts[1:], sample_count]
    kept = [(s, p) for s, e, p in zip(starts, ends, phones, strict=True) if s < e]
    joined = [
        (start, phone)
        for index, (start, phone) in enumerate(kept)
        if index == 0 or phone != SILENCE or kept[index - 1][1] != SILENCE
    ]
    return np.array([s for s, _ in joined]), [p for _, p in joined]
