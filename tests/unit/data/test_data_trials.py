"""Trials: the next minibatches of ResizableBatches, read between steps."""

import pytest

from tests.support.recording import Between, every_data, fit, fresh, numbered, times_each
from tf_onebit import ResizableBatches


def try_out(model, peek):
    """Returns the samples of each minibatch of a trial."""
    before = len(model.batches)
    for minibatch in peek:
        model.train_function(minibatch)
    tried = model.batches[before:]
    del model.batches[before:]
    return tried


@every_data
@pytest.mark.parametrize("steps_per_execution", [1, 3])
def test_trials_see_the_samples_that_come_next(traced, make_data, steps_per_execution):
    model = fresh(traced[steps_per_execution])
    batches = ResizableBatches(make_data(), 8, seed=4)
    trials = []

    def look(steps):
        peeks = [batches.peek(30, 12), batches.peek(30, 12), batches.peek(500, 7)]
        trials.append((batches.position, [try_out(model, peek) for peek in peeks]))

    fit(model, batches, Between(look))
    assert times_each(model.samples, 105) == 1
    assert batches.position == 105
    for position, (first, second, rest) in trials:
        after = model.samples[position:]
        assert first == second
        assert sum(first, []) == after[:30] and sum(rest, []) == after
        assert {len(batch) for batch in first[:-2]} <= {12}
        assert len(first) == -(-len(after[:30]) // 12)
        assert len(first) <= 1 or min(map(len, first)) >= 6


def test_a_trial_says_what_it_has(model):
    batches = ResizableBatches(numbered(100), 10)
    peek = batches.peek(64, 20)
    assert (peek.samples, len(peek)) == (64, 4)
    fit(model, batches, Between(lambda steps: setattr(model, "stop_training", steps == 9)))
    peek = batches.peek(64, 20)
    assert (peek.samples, len(peek)) == (10, 1)
    assert [len(next(minibatch)[0]) for minibatch in peek] == [10]
    fit(model, batches)
    assert batches.peek(100, 50).samples == 100  # of the next epoch


def test_a_trial_at_the_end_of_an_epoch_has_nothing(model):
    batches = ResizableBatches(numbered(20), 10)
    found = []
    fit(model, batches, Between(lambda steps: found.append(len(batches.peek(10, 10)))))
    assert found == [1, 0]


def test_a_trial_is_over_when_training_goes_on(model):
    batches = ResizableBatches(numbered(50), 10)
    peek = batches.peek(20, 10)
    fit(model, batches)
    with pytest.raises(ValueError, match="until the next step.*Call peek again"):
        list(peek)
