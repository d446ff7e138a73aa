"""Workers end with an error if they wait for one that has left or is at another place."""

import threading
import time

import pytest
import tensorflow as tf

from tf_onebit.collectives.whereabouts import Board, Whereabouts


class Shared(Board):
    """A board in this process."""

    def __init__(self):
        self.notes = {}
        self.is_gone = False

    def leave(self, key, text):
        assert key not in self.notes
        self.notes[key] = text

    def read(self, key, seconds=0.0):
        if self.is_gone:
            raise ConnectionError("Worker 0, which keeps the board, has ended")
        deadline = time.monotonic() + min(seconds, 0.1)
        while key not in self.notes and time.monotonic() < deadline:
            time.sleep(0.001)
        return self.notes.get(key)

    def remove(self, key):
        self.notes.pop(key, None)


@pytest.fixture
def workers():
    board = Shared()
    three = [Whereabouts(board, rank, 3) for rank in range(3)]
    for one in three:
        one.seconds = 0.2
    return three


def together(workers, *functions):
    """Runs functions of workers at once, and returns their exceptions."""
    errors = [None] * len(functions)

    def call(i):
        try:
            functions[i](workers[i])
        except (RuntimeError, tf.errors.OpError) as error:
            errors[i] = error

    threads = [threading.Thread(target=call, args=[i]) for i in range(len(functions))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return errors


def meet(worker):
    worker.meet("save")


def test_workers_at_the_same_place_meet_again_and_again(workers):
    for _ in range(5):
        for worker in workers:
            worker.begin_pass()
            worker.end_pass()
        assert together(workers, meet, meet, meet) == [None] * 3
    # Only notes about passes accumulate.
    meetings = [key for key in workers[0]._board.notes if key.startswith("meeting")]
    assert len(meetings) <= 2 * len(workers)


def test_workers_at_different_places_are_told_both(workers):
    workers[1].end_fit(7)
    errors = together(workers, meet, meet, meet)
    assert "than worker 1. Worker 0: save, epochs begun: 0, " in str(errors[0])
    assert "Worker 1: save, epochs begun: 0, calls of fit ended: 1." in str(errors[0])
    assert "Worker 1 is at another place than worker 2" in str(errors[1])


def test_a_worker_in_the_midst_of_an_epoch_is_not_waited_for(workers):
    for worker in workers:
        worker.begin_pass()
    errors = together(workers, meet, lambda worker: None, lambda worker: None)
    assert "Worker 1 is still in the middle of its epoch after 0.2 seconds" in str(errors[0])
    # The step of that worker fails, and its error says who has given up.
    with pytest.raises(tf.errors.UnavailableError, match="Worker 0 has given up. Worker 0 waits"):
        with workers[1].naming_who_left():
            raise tf.errors.UnavailableError(None, None, "Socket closed")


def test_a_worker_that_has_begun_another_epoch_is_not_waited_for(workers):
    for worker in workers:
        worker.begin_pass()
        worker.end_pass()
    workers[1].begin_pass()
    errors = together(workers, meet, lambda worker: None, lambda worker: None)
    assert "Worker 1 has begun another epoch" in str(errors[0])


def test_a_worker_that_has_ended_is_not_waited_for(workers):
    workers[1].exit()
    with pytest.raises(RuntimeError, match="Worker 1 has ended. Worker 0 is here: model.save"):
        workers[0].meet("model.save")


def test_a_board_that_does_not_answer_stops_nobody(workers):
    workers[0]._board.is_gone = True
    assert together(workers, meet, meet, meet) == [None] * 3


def test_what_another_worker_does_is_no_cause_where_workers_train_apart(workers):
    workers[2].end_fit(12)
    workers[0].are_in_step = False
    with pytest.raises(tf.errors.UnknownError, match="^another fault$"):
        with workers[0].naming_who_left():
            raise tf.errors.UnknownError(None, None, "another fault")


def test_a_worker_that_has_ended_its_epoch_is_waited_for(workers):
    for worker in workers:
        worker.begin_pass()
        worker.end_pass()

    def meet_late(worker):
        time.sleep(1.0)
        worker.meet("save")

    assert together(workers, meet, meet_late, meet) == [None] * 3


def test_workers_that_train_apart_are_waited_for(workers):
    for worker in workers:
        worker.begin_pass()
        worker.are_in_step = False
    workers[0].meet("save")  # returns at once, because the collective itself waits


def test_one_that_has_ended_fit_is_named(workers):
    workers[2].end_fit(12)
    with pytest.raises(tf.errors.UnknownError, match="Worker 2 has ended fit, after 12 steps"):
        with workers[0].naming_who_left():
            raise tf.errors.UnknownError(None, None, "Horovod has been shut down.")
    workers[0].end_fit(12)  # like this worker: then it was something else
    with pytest.raises(tf.errors.UnknownError, match="^another fault$"):
        with workers[0].naming_who_left():
            raise tf.errors.UnknownError(None, None, "another fault")


def test_the_end_of_the_board_is_that_of_its_keeper(workers):
    workers[0]._board.is_gone = True
    with pytest.raises(tf.errors.UnavailableError, match="Worker 0, which keeps the board, has"):
        with workers[1].naming_who_left():
            raise tf.errors.UnavailableError(None, None, "Socket closed")


def test_the_end_of_data_is_no_departure(workers):
    workers[2].end_fit(12)
    with pytest.raises(tf.errors.OutOfRangeError, match="^end$"):
        with workers[0].naming_who_left():
            raise tf.errors.OutOfRangeError(None, None, "end")


def pair_of_the_job():
    board = Shared()
    return [Whereabouts(board, rank, 2, members=[4, 7]) for rank in range(2)]


def test_workers_of_a_part_of_the_job_are_named_by_their_ranks_in_the_job():
    pair = pair_of_the_job()
    pair[1].begin_pass()
    with pytest.raises(RuntimeError, match="Worker 7 has begun another epoch. Worker 4 is here"):
        pair[0].meet("save")
    with pytest.raises(tf.errors.UnknownError, match="Worker 4 has given up. Worker 4 waits"):
        with pair[1].naming_who_left():
            raise tf.errors.UnknownError(None, None, "Horovod has been shut down.")
    errors = together(pair_of_the_job(), meet, lambda worker: worker.meet("load"))
    assert "Worker 4 is at another place than worker 7. Worker 4: save" in str(errors[0])
