"""One worker of `plan.py`: plans for the papers' DNN, as `tf-onebit plan` does."""

import argparse
import json
import os
import pathlib
import tempfile
import time

import keras

from tf_onebit import _cli as cli


def make_model():
    """Returns the papers' DNN, compiled as `step_worker.py` and `block_worker.py` train it."""
    import step_worker

    model = step_worker.make_model()
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.1), loss, jit_compile=False)
    return model


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--engine", choices=["horovod", "tensorflow"], required=True)
    parser.add_argument("--sync-period", required=True)
    arguments = parser.parse_args()
    if arguments.engine == "tensorflow":
        del os.environ["HOROVOD_RANK"]  # the command recognizes its launcher by this
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as directory:
        path = pathlib.Path(directory) / "plan.json"
        command = ["plan", "plan_worker:make_model", "--json", str(path)]
        command += ["--sync-period", arguments.sync_period]
        status = cli.main(command)
        if status:
            raise SystemExit(status)
        # Rank 0 writes it. The others print nothing.
        plan = json.loads(path.read_text()) if path.exists() else None
    print(json.dumps({"plan": plan, "seconds": time.perf_counter() - start}))


if __name__ == "__main__":
    main()
