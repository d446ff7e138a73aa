"""Commands to plan, measure, start and check distributed training."""

import argparse
import sys

from tf_onebit import doctor, launch
from tf_onebit._version import __version__
from tf_onebit.preflight import bench, plan


def main(arguments=None):
    """Runs the command and returns its exit status."""
    parser = argparse.ArgumentParser(prog="tf-onebit", description=__doc__)
    parser.add_argument("--version", action="version", version=f"tf_onebit {__version__}")
    commands = parser.add_subparsers(required=True, metavar="command")
    launch.add_command(commands)
    plan.add_command(commands)
    bench.add_command(commands)
    doctor.add_command(commands)
    options = parser.parse_args(arguments)
    return options.run(options)


if __name__ == "__main__":
    sys.exit(main())
