"""Training in the speech example: its updates, and the course of sizes and rates."""

import batches
import course
import numpy as np
import pytest
import updates

import tf_onebit.horovod as hvd
from tests.examples.speech import arguments, learnable_split


class TestUpdates:
    def of_sum(self, text):
        """Returns the names of the transforms before the first quantisation, and those after it."""
        exchange = updates.make_exchange(arguments(text), workers=2).inner
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
        flags = "--auto-minibatch --batch-size 16 --minibatch-interval"
        short, long = (arguments(f"{flags} {interval}") for interval in (900, 90_000))
        searches = [
            course.course_of(o, learnable_split(), None, 0, 1).callbacks[0]
            for o in (chosen, short, long)
        ]
        assert [s.trial_samples for s in searches] == [300, 40 * 16, 1800]
        assert [s.error_margin for s in searches] == [0.0, 0.01, 0.01]
        assert [s.monitor for s in searches] == ["accuracy", "loss", "loss"]

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
