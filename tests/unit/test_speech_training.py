"""How the speech example trains: options, networks, where training begins, recipes, tables."""

import pathlib
import sys

import keras
import numpy as np
import pytest

import tf_onebit.horovod as hvd

ROOT = pathlib.Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "examples" / "speech"), str(ROOT / "benchmarks")]

import batches  # noqa: E402
import course  # noqa: E402
import dataset  # noqa: E402
import model as networks  # noqa: E402
import options  # noqa: E402
import recipe  # noqa: E402
import seide_accuracy  # noqa: E402
import seide_tables  # noqa: E402
import speech_jobs  # noqa: E402
import start  # noqa: E402
import updates  # noqa: E402
from targets import NO_TARGET  # noqa: E402


class TestOptions:
    def test_presets_are_defaults(self):
        assert options.parse_arguments(["--preset", "paper-small"]).depth == 7
        assert options.parse_arguments(["--preset", "paper-small", "--depth", "3"]).depth == 3

    def test_only_threshold_is_asynchronous(self):
        assert options.parse_arguments(["--exchange", "threshold", "--asynchronous"]).asynchronous
        with pytest.raises(SystemExit):
            options.parse_arguments(["--exchange", "onebit", "--asynchronous"])

    @pytest.mark.parametrize(
        "arguments, problem",
        [
            (["--shares", "4", "1"], "--shares needs --asynchronous"),
            (["--asynchronous", "--shares", "4", "0"], "--shares must be positive"),
        ],
    )
    def test_shares_are_positive_and_of_workers_that_do_not_wait(self, arguments, problem, capsys):
        with pytest.raises(SystemExit):
            options.parse_arguments(["--exchange", "threshold", *arguments])
        assert problem in capsys.readouterr().err

    @pytest.mark.parametrize("preset", options.PRESETS)
    def test_presets_have_no_conflicts(self, preset):
        assert options.parse_arguments(["--preset", preset]).preset == preset

    def test_switches_of_presets_can_be_turned_off(self):
        assert options.parse_arguments(["--preset", "seide"]).delayed
        off = ["--no-delayed", "--no-tune-without-delay"]
        assert not options.parse_arguments(["--preset", "seide", *off]).delayed

    def test_the_schedule_fits_what_is_known_of_the_steps(self):
        assert options.parse_arguments([]).schedule == "cosine"
        assert options.parse_arguments(["--auto-learning-rate"]).schedule == "constant"

    @pytest.mark.parametrize(
        "arguments, problem",
        [
            ("--adagrad raw", "gradients that are not quantised. Received: --exchange onebit"),
            ("--adagrad local --exchange full", "--adagrad local takes place where 1-bit"),
            ("--adagrad aggregate --exchange threshold", "--adagrad aggregate takes place where"),
            ("--adagrad after-momentum", "needs --momentum. Received: --momentum 0"),
            ("--adagrad aggregate --bmuf", "--adagrad needs workers that exchange"),
            ("--delayed --batch-size 33", "an even number of frames. Received: --batch-size 33"),
            ("--delayed --exchange threshold --asynchronous", "Received: --asynchronous"),
            ("--auto-minibatch --schedule cosine", "Received: --schedule cosine"),
            ("--auto-learning-rate --blocks 3", "end with one. Received: --first-block 0 --blo"),
            ("--minibatch-interval 1000", "--minibatch-interval needs --auto-minibatch"),
            ("--evaluation-interval 1000", "--evaluation-interval needs --auto-learning-rate"),
            ("--auto-minibatch --minibatch-interval 0", "positive number of frames. Received: 0"),
            ("--trial-frames 1000", "--trial-frames needs --auto-minibatch"),
            ("--auto-minibatch --trial-frames 0", "positive number of frames. Received: 0"),
            ("--error-margin nan", "error of at least 0. Received: nan"),
            ("--auto-minibatch --tune-without-delay", "--tune-without-delay needs --delayed"),
            ("--warm-start-samples -1", "positive number of frames. Received: -1"),
            ("--warm-start-samples 100 --bmuf", "--warm-start-samples needs workers"),
            ("--svd-rank 512", "less than --width. Received: --svd-rank 512, --width 512"),
            ("--svd-rank 8 --depth 1", "between hidden layers. Received: --depth 1"),
            ("--pretrain 2", "at most 1. Received: 2.0"),
            ("--pretrain --depth 1", "needs 2 or more hidden layers. Received: --depth 1"),
            ("--pretrain --load-weights a.weights.h5", "Received: --load-weights a.weights.h5"),
        ],
    )
    def test_what_makes_no_sense_is_refused(self, arguments, problem, capsys):
        with pytest.raises(SystemExit):
            options.parse_arguments(arguments.split())
        assert problem in " ".join(capsys.readouterr().err.split())


def small_network(depth, activation="sigmoid"):
    keras.utils.set_random_seed(1)
    return networks.acoustic_model((11, 2), 30, depth, 12, activation)


class TestLowRank:
    INPUTS = np.random.default_rng(1).standard_normal((5, 11, 2)).astype(np.float32)

    def test_matrices_of_that_rank_stay_what_they_are(self):
        model = small_network(3)
        for layer in networks.hidden_layers(model)[1:]:
            kernel, bias = layer.get_weights()
            kernel[4:] = np.tile(kernel[:4], (2, 1))
            layer.set_weights([kernel, bias + 1])
        expected = model(self.INPUTS)
        low = networks.low_rank_model(model, 4)
        np.testing.assert_allclose(low(self.INPUTS), expected, rtol=1e-3, atol=1e-4)

    def test_others_become_the_closest_of_that_rank(self):
        model = small_network(2)
        kernel, bias = networks.hidden_layers(model)[1].get_weights()
        _, first, bottleneck, expanding, logits = networks.low_rank_model(model, 5).layers
        (left,), (right, new_bias) = bottleneck.get_weights(), expanding.get_weights()
        assert left.shape == (12, 5) and right.shape == (5, 12)
        singular_values = np.linalg.svd(kernel, compute_uv=False)
        distance = np.linalg.norm(kernel - left @ right)
        assert distance == pytest.approx(np.linalg.norm(singular_values[5:]), rel=1e-4)
        np.testing.assert_array_equal(new_bias, bias)
        assert (first, logits) == (model.layers[1], model.layers[-1])

    def test_what_comes_between_has_no_biases_and_no_activation(self):
        low = networks.low_rank_model(small_network(3, "relu"), 5)
        bottlenecks, expanding = low.layers[2:-1:2], low.layers[3:-1:2]
        assert not any(layer.use_bias for layer in bottlenecks)
        assert {layer.activation for layer in bottlenecks} == {keras.activations.linear}
        assert {layer.activation for layer in expanding} == {keras.activations.relu}


def learnable_split(frames=4000):
    """Frames of four kinds, which are their targets."""
    rows, edge = np.arange(frames), dataset.CONTEXT_FRAMES
    kinds = rows // 50 % 4
    inner = (rows >= edge) & (rows < frames - edge)
    vectors = np.array([[0, 0], [0, 1], [1, 0], [1, 1]], np.float32)
    return dataset.Split(vectors[kinds], np.where(inner, kinds, NO_TARGET).astype(np.int32))


class TestStart:
    def arguments(self, *more):
        return options.parse_arguments(
            ["--depth", "3", "--width", "16", "--batch-size", "20", "--activation", "sigmoid"]
            + ["--learning-rate", "1", *more]
        )

    def test_pretraining_moves_hidden_layers_but_the_last_and_no_outputs(self):
        hvd.init()
        split = learnable_split()
        models = []
        for more in ((), ("--pretrain", "0.5")):
            keras.utils.set_random_seed(1)
            models.append(start.initial_model(self.arguments(*more), split, 4, 0, 1))
        same = [
            np.array_equal(before.get_weights()[0], after.get_weights()[0])
            for before, after in zip(*(model.layers[1:] for model in models), strict=True)
        ]
        assert same == [False, False, True, True]

    def test_every_stage_trains_all_of_its_hidden_layers(self):
        hvd.init()
        split, model = learnable_split(), small_network(3)
        first = networks.hidden_layers(model)[0]
        kernels = []

        def minibatches(depth):
            kernels.append(first.get_weights()[0] if depth > 1 else None)
            return batches.FrameBatches(split, 20, 0, 1, 4, 1, first_block=depth - 1)

        start.pretrain(model, minibatches, learning_rate=1.0, momentum=0.0)
        assert len(kernels) == 2
        assert not np.array_equal(kernels[1], first.get_weights()[0])

    def test_pretraining_learns(self):
        hvd.init()
        split = learnable_split()
        entropies = start.pretrain(
            small_network(2),
            lambda depth: batches.FrameBatches(split, 20, 0, 1, 1, 1),
            learning_rate=1.0,
            momentum=0.0,
        )
        assert entropies[0] < 0.9 * np.log(30)

    def test_weights_of_low_rank_are_saved_and_loaded(self, tmp_path):
        hvd.init()
        split, path = learnable_split(), tmp_path / "model.weights.h5"
        saved = start.initial_model(self.arguments("--svd-rank", "3"), split, 4, 0, 1)
        saved.set_weights([w + 1 for w in saved.get_weights()])
        saved.save_weights(path)
        flags = ("--svd-rank", "3", "--load-weights", str(path))
        loaded = start.initial_model(self.arguments(*flags), split, 4, 0, 1)
        for expected, actual in zip(saved.get_weights(), loaded.get_weights(), strict=True):
            np.testing.assert_array_equal(actual, expected)


def arguments(text):
    return options.parse_arguments(text.split())


class TestUpdates:
    def of_sum(self, text):
        """Names of the transforms before the first quantisation, and of those after it."""
        exchange = updates.make_exchange(arguments(text), workers=2).compressed
        return tuple(
            [type(transform).__name__ for transform in transforms]
            for transforms in (exchange.local_transforms, exchange.transforms)
        )

    def test_adagrad_and_momentum_go_where_the_placement_needs_them(self):
        smoothed = "--exchange onebit --momentum 0.9 --adagrad"
        assert self.of_sum(f"{smoothed} local") == (["NormalizedAdaGrad"], ["Momentum"])
        assert self.of_sum(f"{smoothed} aggregate") == ([], ["NormalizedAdaGrad", "Momentum"])
        assert self.of_sum(f"{smoothed} after-momentum") == ([], ["Momentum", "NormalizedAdaGrad"])
        assert self.of_sum("--exchange onebit --momentum 0.9") == ([], [])

    @pytest.mark.parametrize(
        "flags, kind, momentum",
        [
            ("--exchange onebit --adagrad aggregate", "SGD", 0.0),
            ("--exchange onebit", "SGD", 0.9),
            ("--exchange full --adagrad raw", "NormalizedAdaGrad", 0.9),
            ("--exchange full --adagrad after-momentum", "NormalizedAdaGrad", 0.9),
        ],
    )
    def test_momentum_is_applied_once(self, flags, kind, momentum):
        hvd.init()
        optimizer = updates.make_optimizer(arguments(f"{flags} --momentum 0.9"), 100, workers=1)
        assert (type(optimizer).__name__, optimizer.momentum) == (kind, momentum)

    def test_half_minibatches_change_the_weights_as_much_per_frame(self):
        hvd.init()
        whole, half = (
            arguments(f"--schedule constant --learning-rate 0.4 --batch-size 64 {delayed}")
            for delayed in ("", "--delayed")
        )
        rates = [
            float(updates.make_optimizer(o, 100, workers=1).learning_rate) for o in (whole, half)
        ]
        assert rates == pytest.approx([0.4, 0.2])
        assert [updates.frames_per_step(o) for o in (whole, half)] == [64, 32]

    def test_a_start_in_full_precision_is_counted_in_frames_of_all_workers(self):
        in_frames = arguments("--warm-start-samples 5000 --batch-size 100")
        in_steps = arguments("--warm-start 50 --batch-size 100")
        assert updates.warm_start_frames(in_frames, 2) == 5000
        assert updates.warm_start_frames(in_steps, 2) == 50 * 2 * 100
        assert updates.make_exchange(in_frames, 2).samples == 5000

    def test_the_fixed_profile_cuts_the_rate_after_three_of_seven_passes(self):
        hvd.init()
        chosen = arguments("--schedule steps --learning-rate 0.4")
        rate = updates.make_optimizer(chosen, 700, workers=1)._learning_rate
        assert [float(rate(step)) for step in (300, 301)] == pytest.approx([0.4, 0.01])


class TestCourse:
    def test_the_automatic_one_goes_on_where_the_fixed_one_ended(self):
        hvd.init()
        split = learnable_split()
        flags = "--batch-size 100 --blocks-per-epoch 3 --epochs 2"
        fixed = course.course_of(arguments(f"{flags} --blocks 1"), split, None, 0, 1)
        going_on = course.course_of(
            arguments(f"{flags} --auto-minibatch --first-block 1"), split, None, 0, 1
        )
        data = going_on.fit_arguments["x"]
        first = [targets for _, targets in (fixed.fit_arguments["x"][i] for i in range(13))]
        assert fixed.frames == [1300] and going_on.fit_arguments["epochs"] == 2
        whole = batches.FrameBatches(split, course.READ_FRAMES, 0, 1, shuffle_seed=1)
        offset = len(whole) * course.READ_FRAMES // 3
        assert int(data.state()["offset"]) == offset
        (_, targets), *_ = data.example(), None
        order = np.concatenate([whole[i][1] for i in range(len(whole))])
        np.testing.assert_array_equal(targets, order[offset : offset + len(targets)])
        np.testing.assert_array_equal(np.concatenate(first), order[:1300])

    def test_searches_are_as_asked_for(self):
        flags = "--minibatch-interval 900 --trial-frames 300 --error-margin 0"
        chosen = arguments(f"--auto-minibatch {flags} --minibatch-criterion accuracy")
        default = arguments("--auto-minibatch --minibatch-interval 900")
        searches = [
            course.course_of(o, learnable_split(), None, 0, 1).callbacks[0]
            for o in (chosen, default)
        ]
        assert [s.trial_samples for s in searches] == [300, 18]
        assert [s.error_margin for s in searches] == [0.0, 0.01]
        assert [s.monitor for s in searches] == ["accuracy", "loss"]

    def test_the_largest_minibatch_has_equal_parts(self):
        chosen = arguments("--auto-minibatch --delayed --max-minibatch 8192")
        control, _ = course.course_of(chosen, learnable_split(), None, 0, 3).callbacks
        assert control.max_size == 4095  # 3 x 1365

    def test_sizes_are_searched_for_after_the_learning_rate_is_decided(self):
        chosen = arguments("--auto-minibatch --auto-learning-rate")
        split = learnable_split()
        held_out = batches.FrameBatches(split, 100, 0, 1)
        kinds = [
            type(c).__name__ for c in course.course_of(chosen, split, held_out, 0, 1).callbacks
        ]
        assert kinds[:2] == ["AutoLearningRate", "AutoMinibatchSize"]

    def test_workers_are_given_what_their_shares_are(self):
        with pytest.raises(SystemExit, match="one for each of 3 workers"):
            chosen = arguments("--exchange threshold --asynchronous --shares 1 2")
            course.course_of(chosen, learnable_split(), None, 0, 3)


def blocks_of(phases):
    return [b for p in phases for b in range(p.first_block, p.first_block + p.blocks)]


class TestRecipe:
    def test_phases_are_small_and_few_at_first_and_cover_every_epoch_once(self):
        phases = recipe.strom(3, 6, learning_rate=0.4, batch_size=128, workers=8)
        assert [phase.workers for phase in phases] == [4, 4, 8, 8]
        assert [phase.batch_size for phase in phases] == [32, 64, 128, 128]
        assert [phase.learning_rate for phase in phases] == [0.4, 0.4, 0.2, 0.1]
        assert blocks_of(phases) == list(range(18))

    def test_one_worker_begins_without_quantisation(self):
        alone, all_of_them = recipe.seide(2, 13, learning_rate=0.04, batch_size=128, workers=4)
        assert (alone.workers, all_of_them.workers) == (1, 4)
        # As many frames in a minibatch, and the same learning rate, are as much for each frame.
        assert alone.batch_size == 4 * all_of_them.batch_size
        assert alone.learning_rate == all_of_them.learning_rate
        assert blocks_of([alone, all_of_them]) == list(range(26)) and alone.blocks == 1
        parsed = options.parse_arguments(["--preset", "seide", *alone.flags])
        assert (parsed.exchange, parsed.adagrad) == ("full", "raw")
        assert not (parsed.delayed or parsed.auto_minibatch or parsed.auto_learning_rate)

    def test_small_minibatches_come_first_at_the_same_rate_per_frame(self):
        small, large = recipe.parallelizability(2, 13, 0.04, batch_size=512, workers=2)
        assert (small.batch_size, large.batch_size) == (128, 512)
        assert small.learning_rate / small.batch_size == large.learning_rate / large.batch_size
        assert blocks_of([small, large]) == list(range(26)) and small.blocks == 1


SCALE = seide_tables.Scale(
    0.1,
    {"plain": 2, "adagrad": 3, "growing": 7},
    minibatch_interval=6000,
    evaluation_interval=3000,
    trial_frames=1920,
    error_margin=0.02,
    svd_rank=8,
)


class TestTables:
    @pytest.mark.parametrize("name", seide_tables.TABLES)
    def test_rows_can_be_trained_and_compared(self, name):
        rows = seide_tables.TABLES[name](SCALE).rows
        for row in rows.values():
            options.parse_arguments(row.arguments)
            assert row.reference is None or row.reference in rows
        assert len({row.arguments for row in rows.values()}) == len(rows)

    @pytest.mark.parametrize("name", seide_tables.TABLES)
    def test_with_one_seed_no_claim_on_an_interval_is_known(self, name, capsys):
        table = seide_tables.TABLES[name](SCALE)
        result = {
            "held_out_accuracy": [0.4] * 7,
            "training_accuracy": [0.5],
            "mean_minibatch": 256.0,
            "largest_minibatch": 256,
            "search_frames": 1000,
            "frames": [10_000],
        }
        results = {row.arguments: [result] for row in table.rows.values()}
        for verdict in table.report(results, [1]):
            assert (verdict["holds"] is None) == ("interval" in verdict["claim"])
        assert "40.00 +- inf" in capsys.readouterr().out

    def judged(self, sizes):
        """Which claims hold of the table of growing minibatches, where they had these sizes."""
        table = seide_tables.growing(SCALE)
        results = {
            row.arguments: [
                {
                    "held_out_accuracy": [0.4] * 7,
                    "training_accuracy": [0.5],
                    "mean_minibatch": float(size),
                    "largest_minibatch": size,
                    "search_frames": 1000,
                    "frames": [10_000],
                }
                for size in of_seeds
            ]
            for row, of_seeds in zip(table.rows.values(), sizes, strict=True)
        }
        return {v["claim"]: v["holds"] for v in table.report(results, [1, 2])}

    def test_each_row_must_grow_with_each_seed(self):
        holds = self.judged([(256, 256), (1024, 1024), (1023, 5000), (2048, 1024), (4096, 4096)])
        grown = [h for claim, h in holds.items() if "largest minibatch over the fixed" in claim]
        assert grown == [True, False, True, True]

    def test_larger_minibatches_without_delay_in_trials_must_be_so_with_every_seed_alike(self):
        fixed = (256, 256)
        for delayed, not_delayed, expected in (
            ((1024, 1024), (1024, 1024), [False, False]),
            ((1024, 2048), (2048, 2048), [True, False]),
            ((1024, 2048), (2048, 4100), [True, True]),
        ):
            holds = self.judged([fixed, fixed, fixed, delayed, not_delayed])
            assert [h for claim, h in holds.items() if "not delayed" in claim] == expected

    def test_trials_are_alike_and_large_enough_however_often(self):
        scale = SCALE._replace(trial_frames=18_432)
        for table, criterion, searching in (
            (seide_tables.growing(scale), "accuracy", 4),
            (seide_tables.automatic(scale), "loss", 1),
        ):
            chosen = [options.parse_arguments(row.arguments) for row in table.rows.values()]
            chosen = [o for o in chosen if o.auto_minibatch]
            assert len(chosen) == searching
            assert {o.trial_frames for o in chosen} == {18_432}
            assert {o.max_minibatch for o in chosen} == {6144}
            assert {o.error_margin for o in chosen} == {0.02}
            assert {o.minibatch_criterion for o in chosen} == {criterion}

    def test_a_training_that_diverged_is_one_that_lost_everything(self):
        table = seide_tables.growing(SCALE)
        trained = speech_jobs.DIVERGED | {
            "held_out_accuracy": [0.4] * 7,
            "training_accuracy": [0.5],
            "mean_minibatch": 256.0,
            "largest_minibatch": 256,
            "search_frames": 1000,
            "frames": [5000, 10_000],
        }
        results = {
            row.arguments: [speech_jobs.DIVERGED if "--delayed" in row.arguments else trained] * 2
            for row in table.rows.values()
        }
        (tuned_row,) = [row for name, row in table.rows.items() if name == "minibatch tuned"]
        results[tuned_row.arguments] = [trained, speech_jobs.DIVERGED]
        failed = [v["claim"] for v in table.report(results, [1, 2]) if not v["holds"]]
        assert any("double buffering: points lost" in claim for claim in failed)

    def test_what_was_trained_is_not_trained_again(self, tmp_path, monkeypatch):
        trained = []

        def train(row, seed, workers, arguments):
            trained.append((row.name, seed))
            if len(trained) == 4:
                raise KeyboardInterrupt
            return {"held_out_accuracy": [0.1 * seed]}

        monkeypatch.setattr(seide_accuracy, "train", train)
        rows = [("one", ("--epochs", "1")), ("two", ("--epochs", "2"))]
        path = tmp_path / "results" / "tables.json"
        with pytest.raises(KeyboardInterrupt):
            seide_accuracy.Runner(path, [1, 2], 2, ("--depth", "1")).train(rows)
        runner = seide_accuracy.Runner(path, [1, 2], 2, ("--depth", "1"))
        runner.train(rows)
        assert trained == [("one", 1), ("two", 1), ("one", 2), ("two", 2), ("two", 2)]
        assert runner.results(rows[1][1]) == [{"held_out_accuracy": [0.1 * s]} for s in (1, 2)]
