"""The course of a command that measures: its checks, what it says meanwhile, and its status."""

import os
import sys

from tf_onebit.start_up_notes import without_start_up_notes


def run_command(name, run, options, check=lambda options: None):
    """Runs a command, and tells in a line why it cannot be. Returns its exit status.

    Args:
        name: of the command.
        run: function of the options.
        options: what `argparse` makes of the command's arguments.
        check: function of the options that comes before TensorFlow is imported, for seconds, and
            raises ValueError.
    """
    try:
        check(options)
    except ValueError as error:
        return _failed(name, error)
    # TensorFlow's own notes would bury what the command says.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    with without_start_up_notes():
        import tensorflow as tf
    tf.get_logger().addFilter(_is_no_advice)
    try:
        run(options)
    except (ValueError, RuntimeError, OSError, tf.errors.OpError) as error:
        return _failed(name, error)
    return 0


def _failed(name, error):
    print(f"tf-onebit {name}: {error}", file=sys.stderr)
    return 1


def _is_no_advice(record):
    """Tells whether a message is about anything but functions that are traced often."""
    return "triggered tf.function retracing" not in record.getMessage()


def announce(workers, stage):
    """Prints what is being measured, on the first worker."""
    if workers.rank == 0:
        print(f"Measuring {stage} ...", file=sys.stderr, flush=True)
