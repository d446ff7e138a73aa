"""Options of the speech example."""

import options
import pytest


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
        for off in (["--no-delayed"], ["--no-auto-minibatch"], ["--no-tune-without-delay"]):
            chosen = options.parse_arguments(["--preset", "seide", *off])
            assert not chosen.tune_without_delay
            assert chosen.delayed == ("--no-delayed" not in off)

    def test_the_schedule_fits_what_is_known_of_the_steps(self):
        assert options.parse_arguments([]).schedule == "cosine"
        assert options.parse_arguments(["--auto-learning-rate"]).schedule == "constant"

    @pytest.mark.parametrize(
        "arguments, problem",
        [
            ("--adagrad raw", "gradients that are not quantized. Received: --exchange onebit"),
            ("--adagrad local --exchange full", "--adagrad local is a part of 1-bit"),
            ("--adagrad aggregate --exchange threshold", "--adagrad aggregate is a part of 1-bit"),
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
