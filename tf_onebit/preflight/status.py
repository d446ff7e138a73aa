"""How the commands that measure end."""

import os
import sys

from tf_onebit.start_up_notes import without_start_up_notes


def status_of(name, run, options):
    """Runs a command, and tells in a line why it cannot be. Returns its exit status.

    Args:
        name: of the command.
        run: function of the options.
        options: what `argparse` makes of the command's arguments.
    """
    # TensorFlow's own notes would bury it.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    with without_start_up_notes():
        import tensorflow as tf

    try:
        run(options)
    except (ValueError, RuntimeError, OSError, tf.errors.OpError) as error:
        print(f"tf-onebit {name}: {error}", file=sys.stderr)
        return 1
    return 0
