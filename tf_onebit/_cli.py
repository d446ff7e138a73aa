"""Commands to plan, measure, start and check distributed training."""

import argparse
import sys

from tf_onebit import _check as check
from tf_onebit import _doctor as doctor
from tf_onebit import _launch as launch
from tf_onebit._preflight import bench, plan
from tf_onebit._version import __version__


def main(arguments=None):
    """Runs the command and returns its exit status."""
    parser = argparse.ArgumentParser(prog="tf-onebit", description=__doc__)
    parser.add_argument("--version", action="version", version=f"tf_onebit {__version__}")
    commands = parser.add_subparsers(required=True, metavar="command")
    launch.add_command(commands)
    plan.add_command(commands)
    bench.add_command(commands)
    check.add_command(commands)
    doctor.add_command(commands)
    options = parser.parse_args(arguments)
    return options.run(options)


if __name__ == "__main__":
    sys.exit(main())
