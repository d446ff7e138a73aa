"""Calls that all members of a group make together."""

import contextlib

import tensorflow as tf

from tf_onebit.collectives.requests import AllGather, one_request
from tf_onebit.exchanges.handshake import handshake

_REMEDY = "Make the same call on all processes, also in callbacks, and not on rank 0 alone."


@contextlib.contextmanager
def together(group, call):
    """Returns a context for a call that all members of a group make. They begin and end together.

    Args:
        group: `Group`.
        call: name of the call, such as "save".

    Raises:
        ValueError: on all members, if they make different calls.
        RuntimeError: if another member does not come, within the time that `hvd.init` sets; or if
            the call has failed on another member.
    """
    with _naming(group, call):
        group.within.run([handshake(f"model.{call}", [], _REMEDY)])
    failed = True
    try:
        yield
        failed = False
    finally:
        with _naming(group, call) if not failed else contextlib.suppress(tf.errors.OpError):
            failures = _gathered(group, failed)
    if failures.any():
        raise RuntimeError(
            f"model.{call} has failed on the members {failures.nonzero()[0].tolist()} of the group."
            " See the error of that process."
        )


def _gathered(group, failed):
    request = AllGather(tf.constant([failed], tf.int32), "tf_onebit/model_parallel/outcome")
    return group.within.run([one_request(request)])[0].numpy()


@contextlib.contextmanager
def _naming(group, call):
    """Explains an error of a collective within the context."""
    try:
        yield
    except tf.errors.OpError as error:
        raise RuntimeError(
            f"model.{call} of a split model needs all {group.members} members of a group. "
            f"Received: a call on member {group.member} of group {group.number}, while another "
            f"member does something else or has ended. {_REMEDY}\n\n{error.message}"
        ) from error
