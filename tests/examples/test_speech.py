"""The speech example: its corpus, features, targets, and shares of minibatches."""

import collections
import multiprocessing
import sys
import threading
import time

import batches
import compare
import corpus
import dataset
import espeak
import features
import numpy as np
import prose
import pytest
from targets import NO_TARGET, Targets, frame_states, state_contexts

SENTENCES = ["The quick brown fox jumps over the lazy dog.", "This, however, is another matter."]


@pytest.fixture(scope="module")
def synthesizer():
    return espeak.Synthesizer(seed=1)


def record_in_new_process(seed):
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(corpus.record, ("f3", SENTENCES, 5.0, seed))


class TestCorpus:
    def test_same_seed_gives_the_same_bits(self):
        first, again, other = map(record_in_new_process, (1, 1, 2))
        for a, b in zip(first, again, strict=True):
            np.testing.assert_array_equal(a.features, b.features)
            np.testing.assert_array_equal(a.segments, b.segments)
            assert a.phones == b.phones
        assert not np.array_equal(first[0].features, other[0].features)

    def test_held_out_voices_and_sentences_are_not_trained_on(self, monkeypatch):
        documents = prose.documents()
        monkeypatch.setattr(prose, "documents", lambda: documents)  # slow to read
        sets = corpus.TRAINING_VOICES, corpus.DEVELOPMENT_VOICES, corpus.HELD_OUT_VOICES
        assert len(set().union(*sets)) == sum(map(len, sets))
        training, held_out = corpus.split_sentences(seed=1)
        assert not set(training) & set(held_out)
        assert len(training) > 4000 and len(held_out) > 200
        assert (training, held_out) == corpus.split_sentences(seed=1)

    def test_sentences_have_ordinary_words_only(self):
        text = (
            "Return *self* to\nthe caller now.  Set x_y to 3 at once please.\n\n   f(a) -> b. Yes."
        )
        assert prose.sentences(text) == ["Return self to the caller now."]

    @pytest.mark.parametrize("snr_db", [0.0, 20.0])
    def test_noise_has_the_asked_power(self, snr_db):
        speech = np.sin(np.arange(50_000) / 7)
        noise = corpus.add_noise(speech, snr_db, 1.0, np.random.default_rng(1)) - speech
        assert 10 * np.log10(np.mean(speech**2) / np.mean(noise**2)) == pytest.approx(snr_db)


class TestAlignment:
    def test_pauses_are_silent_and_phones_are_not(self, synthesizer):
        samples, starts, phones = synthesizer.speak(SENTENCES[1], "en-us")
        segments = np.split(samples / 32768, starts[1:])
        settling = round(0.01 * synthesizer.sample_rate_hz)
        pauses = [s[settling:] for s, p in zip(segments, phones, strict=True) if p == "_"]
        assert len(pauses) >= 2 and max(np.abs(p).max() for p in pauses if len(p)) < 1e-3
        vowels = [s for s, p in zip(segments, phones, strict=True) if p[0] in "aeiouIVE@"]
        assert len(vowels) >= 6 and min(s.std() for s in vowels) > 1e-2

    def test_segments_cover_the_samples_once(self, synthesizer):
        for sentence in SENTENCES:
            samples, starts, phones = synthesizer.speak(sentence, "en-gb-scotland+m3")
            assert starts[0] == 0 and (np.diff(starts) > 0).all() and starts[-1] < len(samples)
            assert len(phones) == len(starts)
            assert ("_", "_") not in zip(phones, phones[1:], strict=False)

    def test_frames_belong_to_the_segment_of_their_middle(self):
        starts, sample_count, rate_hz = np.array([0, 300, 1000, 1900]), 3000, 22050
        segments, positions = corpus.align(starts, sample_count, rate_hz)
        assert len(segments) == len(features.frame_starts(sample_count, rate_hz))
        ends = [*starts[1:], sample_count]
        for center, segment, position in zip(
            features.frame_centers(sample_count, rate_hz), segments, positions, strict=True
        ):
            start, end = starts[segment], ends[segment]
            assert start <= center < end
            assert position == pytest.approx((center - start) / (end - start), abs=1e-6)

    def test_names_of_phones_are_without_stress_and_pauses_alike(self):
        names = [espeak.phone_name(m) for m in (b"'i:", b",oU", b"_", b"_:", b"t#", b"\xc9\x99")]
        assert names == ["i:", "oU", "_", "_", "t#", "ə"]

    def test_unknown_voice_is_named(self, synthesizer):
        with pytest.raises(ValueError, match="voice='no-such-voice'"):
            synthesizer.speak("Hello.", "no-such-voice")


class TestFeatures:
    def test_log_mel_is_as_defined(self):
        rate_hz = 22050
        samples = np.random.default_rng(1).uniform(-1, 1, 2000)
        got = features.log_mel(samples, rate_hz)
        assert got.dtype == np.float32 and got.shape == (7, 40)
        corners_mel = np.linspace(
            *(2595 * np.log10(1 + np.array([features.LOWEST_HZ, features.HIGHEST_HZ]) / 700)), 42
        )
        corners_hz = 700 * (10 ** (corners_mel / 2595) - 1)
        window = np.hamming(551)
        for frame in range(7):
            start = round(frame * 220.5)
            segment = samples[start : start + 551] * window
            for number in (0, 17, 39):
                low, mid, high = corners_hz[number : number + 3]
                total = 0.0
                for k in range(513):
                    hz = k * rate_hz / 1024
                    weight = max(0, min((hz - low) / (mid - low), (high - hz) / (high - mid)))
                    if weight:
                        wave = np.exp(-2j * np.pi * k * np.arange(551) / 1024)
                        total += weight * abs(segment @ wave) ** 2 / 551
                assert got[frame, number] == pytest.approx(
                    np.log(total + features.POWER_FLOOR), abs=1e-3
                )

    def test_number_of_frames_is_that_of_whole_windows(self):
        for sample_count, frames in ((0, 0), (550, 0), (551, 1), (771, 1), (772, 2), (22050, 98)):
            assert len(features.frame_starts(sample_count, 22050)) == frames
        assert features.frame_starts(22050, 22050)[-1] + 551 <= 22050

    def test_digital_silence_is_finite(self):
        assert np.isfinite(features.log_mel(np.zeros(5000), 22050)).all()


class TestTargets:
    COUNTS = {
        ("a", 0, "t", "k"): 50,
        ("a", 0, "t", "s"): 3,
        ("a", 0, "t", "z"): 3,
        ("a", 0, "m", "s"): 2,
        ("a", 1, "t", "k"): 50,
        ("_", 0, "t", "a"): 20,
    }

    def test_states_are_thirds_of_phones(self):
        contexts = state_contexts(["_", "a", "t"])
        assert contexts[3:6] == [("a", state, "_", "t") for state in range(3)]
        states = frame_states(np.array([1, 1, 1, 1, 2]), np.array([0, 0.32, 0.5, 1.0, 0.9]))
        assert states.tolist() == [3, 3, 4, 5, 8]

    def test_rare_contexts_back_off(self):
        targets = Targets.from_counts(self.COUNTS, target_count=6)
        frequent, pooled, rare = (
            targets.number("a", 0, left, right) for left, right in ("tk", "ts", "ms")
        )
        assert len({frequent, pooled, rare}) == 3
        assert targets.number("a", 0, "t", "z") == pooled
        assert targets.number("a", 0, "never", "seen") == rare
        assert targets.names[rare] == ("a", 0, "", "")

    def test_pauses_have_one_target(self):
        targets = Targets.from_counts(self.COUNTS, target_count=6)
        assert len({targets.number("_", state, "k", "a") for state in range(3)}) == 1

    def test_phones_never_trained_have_none(self):
        targets = Targets.from_counts(self.COUNTS, target_count=6)
        assert targets.number("x", 0, "t", "k") == NO_TARGET

    @pytest.mark.parametrize("target_count", [3, 5, 100])
    def test_there_are_no_more_than_asked_for(self, target_count):
        targets = Targets.from_counts(self.COUNTS, target_count)
        assert len(targets) <= target_count
        used = collections.Counter(targets.number(*context) for context in self.COUNTS)
        assert set(used) <= set(range(len(targets)))

    def test_fewer_than_the_phone_states_are_refused(self):
        with pytest.raises(ValueError, match="number of phone states, 3.*target_count=2"):
            Targets.from_counts(self.COUNTS, target_count=2)


def small_split(frames=1000):
    """Returns frames: frame `i` has the value `i` and, unless it is an edge, the target `i`."""
    rows = np.arange(frames, dtype=np.int32)
    edge = dataset.CONTEXT_FRAMES
    inner = (rows >= edge) & (rows < frames - edge)
    return dataset.Split(
        np.repeat(rows[:, None], 2, axis=1).astype(np.float32), np.where(inner, rows, NO_TARGET)
    )


def all_targets(sequence):
    return [sequence[index][1].tolist() for index in range(len(sequence))]


class TestBatches:
    def test_workers_have_disjoint_equal_shares_of_the_same_minibatches(self):
        split = small_split()
        alone = all_targets(batches.FrameBatches(split, 60, 0, 1, shuffle_seed=1))
        shares = [
            all_targets(batches.FrameBatches(split, 20, rank, 3, shuffle_seed=1))
            for rank in range(3)
        ]
        assert {len(share) for share in shares} == {16}
        for index, minibatch in enumerate(alone):
            assert sum((share[index] for share in shares), []) == minibatch
        assert len(set(sum(alone, []))) == 16 * 60

    def test_slower_workers_may_have_smaller_shares(self):
        split = small_split()
        alone = all_targets(batches.FrameBatches(split, 60, 0, 1, 4, shuffle_seed=1, first_block=1))
        two, one = (
            batches.FrameBatches(split, 20, rank, 3, 4, shuffle_seed=1, first_block=1, share=share)
            for rank, share in ((0, 2), (2, 1))
        )
        assert (len(two), len(one)) == (2 * 4, 4)
        faster, slower = all_targets(two), all_targets(one)
        for index, minibatch in enumerate(alone):
            assert faster[2 * index] + faster[2 * index + 1] + slower[index] == minibatch

    def test_frames_come_with_their_context(self):
        inputs, targets = batches.FrameBatches(small_split(), 8, 0, 1, shuffle_seed=1)[0]
        assert inputs.shape == (8, 11, 2) and inputs.dtype == np.float32
        np.testing.assert_array_equal(inputs[:, :, 0], targets[:, None] + np.arange(-5, 6))

    def test_blocks_are_parts_of_one_shuffle_and_epochs_are_shuffled_anew(self):
        sequence = batches.FrameBatches(small_split(), 9, 0, 1, blocks_per_epoch=2, shuffle_seed=1)
        blocks = []
        for _ in range(4):
            blocks.append(sum(all_targets(sequence), []))
            sequence.on_epoch_end()
        assert not set(blocks[0]) & set(blocks[1])
        assert not set(blocks[2]) & set(blocks[3])
        assert blocks[0] != blocks[2]
        later = batches.FrameBatches(
            small_split(), 9, 0, 1, blocks_per_epoch=2, shuffle_seed=1, first_block=3
        )
        assert sum(all_targets(later), []) == blocks[3]

    def test_too_few_frames_are_refused(self):
        with pytest.raises(ValueError, match="990 frames, batch_size=500, world_size=2"):
            batches.FrameBatches(small_split(), 500, 0, 2)


SMALL = dataset.Settings(hours=0.02, held_out_minutes=0.5, target_count=400)


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return str(tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="module")
def loaded(cache):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", cache)
        return dataset.load(SMALL)


class TestDataset:
    def test_it_has_what_was_asked_for(self, loaded):
        training, held_out, targets = loaded
        assert np.sum(training.targets != NO_TARGET) > 0.02 * 3600 * 95
        assert np.sum(held_out.targets != NO_TARGET) > 0.5 * 60 * 95
        assert 200 < len(targets) <= 400
        assert training.targets.max() < len(targets)

    def test_nobody_decides_by_what_is_reported_on(self, loaded, cache, monkeypatch):
        _, held_out, _ = loaded
        monkeypatch.setenv("XDG_CACHE_HOME", cache)
        development = dataset.load_development(SMALL)
        assert np.sum(development.targets != NO_TARGET) > 0.5 * 60 * 95
        known = {frame.tobytes() for frame in held_out.frames}
        assert not any(frame.tobytes() in known for frame in development.frames)

    def test_training_features_are_normalised(self, loaded):
        training, _, _ = loaded
        frames = training.frames[training.targets != NO_TARGET]
        np.testing.assert_allclose(frames.mean(axis=0), 0, atol=1e-3)
        np.testing.assert_allclose(frames.std(axis=0), 1, atol=1e-3)

    def test_utterances_are_apart_by_their_edge_frames(self, loaded):
        training, _, _ = loaded
        is_edge = training.targets == NO_TARGET
        edge = dataset.CONTEXT_FRAMES
        assert is_edge[:edge].all() and is_edge[-edge:].all() and not is_edge[edge]
        np.testing.assert_array_equal(training.frames[0], training.frames[edge])

    def test_one_process_makes_it_and_the_others_wait(self, tmp_path, monkeypatch):
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
        calls = []

        def make(settings):
            calls.append(settings)
            time.sleep(0.2)
            folder = dataset._cache_folder(settings)
            folder.mkdir()
            (folder / "targets.json").write_text("[]")
            for name in ("training", "held_out"):
                for field in ("frames", "targets"):
                    np.save(folder / f"{name}_{field}.npy", np.zeros(1))

        monkeypatch.setattr(dataset, "_make_in_own_process", make)
        callers = [threading.Thread(target=dataset.load, args=(SMALL,)) for _ in range(3)]
        for caller in callers:
            caller.start()
        for caller in callers:
            caller.join()
        assert calls == [SMALL]

    def test_an_interrupted_one_leaves_nothing(self, tmp_path, monkeypatch):
        def interrupt(*_):
            raise KeyboardInterrupt

        recorded = [record_in_new_process(1)] * 3
        monkeypatch.setattr(dataset, "_record_all", lambda settings: recorded)
        monkeypatch.setattr(dataset.os, "replace", interrupt)
        with pytest.raises(KeyboardInterrupt):
            dataset.make(SMALL, tmp_path / "corpus")
        assert list(tmp_path.iterdir()) == []

    def test_other_settings_are_kept_elsewhere(self):
        folders = {
            dataset._cache_folder(dataset.Settings(hours=hours, seed=seed))
            for hours, seed in ((1, 1), (1.0, 1), (2.0, 1), (1.0, 2))
        }
        assert len(folders) == 3


class TestCompare:
    def test_table_shows_both_and_their_difference(self):
        def result(accuracy, sent_bytes):
            return {
                "held_out_accuracy": [0.1, accuracy],
                "held_out_cross_entropy": [5.0, 2.0],
                "bytes_sent_per_step": sent_bytes,
                "milliseconds_per_step": 50.0,
            }

        table = compare.table({"full": result(0.5, 3_000_000), "1-bit": result(0.49, 100_000)})
        assert len({len(line) for line in table}) == 1
        assert table[2].split()[-4:] == ["50.00%", "2.000", "3,000,000", "50.0"]
        assert table[4].split()[-4:] == ["points", "+0.000", "1/30.0", "x1.00"]

    def test_a_failing_job_ends_with_its_command(self, tmp_path, monkeypatch):
        launcher = tmp_path / "horovodrun"
        launcher.write_text("#!/bin/sh\nexit 3\n")
        launcher.chmod(0o755)
        monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
        with pytest.raises(SystemExit, match="(?s)failed with exit status 3.*--exchange onebit"):
            compare.train(2, ["--exchange", "onebit"], tmp_path / "result.json")
