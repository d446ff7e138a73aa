"""Calls that all processes of a job make together."""

import contextlib

import tensorflow as tf

from tf_onebit.collectives.requests import AllGather, one_request
from tf_onebit.exchanges.handshake import handshake


@contextlib.contextmanager
def together(group, call, tells_failure=False):
    """Returns a context for a call that all processes of a job make.

    They begin and end together: a process that exits would end the job for those that still
    communicate.

    Args:
        group: `Group` of this process.
        call: name of the call, such as "model.save".
        tells_failure: whether a process that fails within the context tells the others, which do
            not need it until then.

    Raises:
        RuntimeError: if another process does something else, has ended, or has failed.
    """
    job = group.job
    if not job.whereabouts.are_in_step:  # groups train apart, but members make steps together
        group.within.whereabouts.meet(call)
    with job.whereabouts.naming_place(call):
        job.meet([handshake(call, [])], call)
    try:
        yield
    except BaseException:
        if tells_failure:
            with contextlib.suppress(tf.errors.OpError):  # which may have been the failure
                _failures(job, True)
        raise
    failures = _failures(job, False)
    if failures.any():
        raise RuntimeError(
            f"{call} has failed on worker {failures.argmax()}, which has the reason in its error."
        )


def _failures(job, failed):
    request = AllGather(tf.constant([int(failed)]), "tf_onebit/model_parallel/failures")
    (failures,) = job.run([one_request(request)])
    return failures.numpy()
