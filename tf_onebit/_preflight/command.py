"""Runner of the commands that measure: checks, messages and exit status."""

import os
import sys

from tf_onebit._start_up_notes import without_start_up_notes


def run_command(name, run, options, check=lambda options: None):
    """Runs a command, prints an error as one line, and returns the exit status.

    Args:
        name: of the command.
        run: function of the options.
        options: the command's arguments, from `argparse`.
        check: function of the options that raises ValueError. It runs before the import of
            TensorFlow, which takes seconds.
    """
    try:
        check(options)
    except ValueError as error:
        return _failed(name, error)
    # TensorFlow's own notes would bury the command's output.
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
    """Tells whether a message is not TensorFlow's advice on functions that are traced often."""
    return "triggered tf.function retracing" not in record.getMessage()


def announce(workers, stage):
    """Prints on the first worker what is being measured."""
    if workers.rank == 0:
        print(f"Measuring {stage} ...", file=sys.stderr, flush=True)
