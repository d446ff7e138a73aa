"""Recipes and tables of the speech example."""

import options
import pytest
import recipe
import seide_accuracy
import seide_tables
import speech_jobs


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
        # With as many frames in a minibatch, and the same learning rate, each frame counts as much.
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
        """Returns which claims hold for a table of growing minibatches with these sizes."""
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
            assert {o.max_minibatch for o in chosen} == {614}  # of thirty minibatches
            assert {o.error_margin for o in chosen} == {0.02}
            assert {o.minibatch_criterion for o in chosen} == {criterion}

    def test_without_error_feedback_each_seed_must_lose(self):
        table = seide_tables.quantisation(SCALE)

        def holds(losses):
            results = {
                row.arguments: [
                    {"held_out_accuracy": [0.4 - ("no error" in name) * loss]}
                    | {"training_accuracy": [0.5], "mean_minibatch": 256.0}
                    for loss in losses
                ]
                for name, row in table.rows.items()
            }
            verdicts = table.report(results, list(range(len(losses))))
            return [v["holds"] for v in verdicts if "no error feedback" in v["claim"]]

        assert holds([0.4, 0.03, 0.04]) == [True] * 3  # one of them has diverged
        assert holds([0.4, 0.002, 0.04]) == [False] * 3

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
