"""One worker of `plan.py`: plans for the papers' DNN, as `tf-onebit plan` does."""

import argparse
import importlib
import json
import os
import pathlib
import tempfile
import time

import keras

from tf_onebit import _cli as cli

# Hidden layers and optimizer of the model, because the command passes no arguments.
settings = {"hidden": "7x2048", "optimizer": "SGD"}


def make_model():
    """Returns the papers' DNN, compiled as other workers train it."""
    import step_worker

    model = step_worker.make_model(settings["hidden"])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(step_worker.make_optimizer(settings["optimizer"]), loss, jit_compile=False)
    return model


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, epilog="Further options are those of `tf-onebit plan`."
    )
    parser.add_argument("--engine", choices=["horovod", "tensorflow"], default="horovod")
    parser.add_argument("--hidden", default=settings["hidden"])
    parser.add_argument("--optimizer", default=settings["optimizer"])
    arguments, options = parser.parse_known_args()
    if arguments.engine == "tensorflow":
        del os.environ["HOROVOD_RANK"]  # the command recognizes its launcher by this
    imported = importlib.import_module("plan_worker")  # as the command does
    imported.settings.update(hidden=arguments.hidden, optimizer=arguments.optimizer)
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as directory:
        path = pathlib.Path(directory) / "plan.json"
        status = cli.main(["plan", "plan_worker:make_model", "--json", str(path), *options])
        if status:
            raise SystemExit(status)
        # Rank 0 writes it. The others print nothing.
        plan = json.loads(path.read_text()) if path.exists() else None
    print(json.dumps({"plan": plan, "seconds": time.perf_counter() - start}))


if __name__ == "__main__":
    main()
