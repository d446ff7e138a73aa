"""One worker of `asynchronous.py`: trains the papers' DNN at its own pace, and notes its steps."""

import argparse
import itertools
import json
import os
import time

import numpy as np

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

# So many that they are not learned by heart. Then gradients and density stay as they are.
NUM_BATCHES = 64
# The step between samples of the final weights.
SAMPLE_EVERY = 9001


class Worker:
    """A worker that trains in stretches, and reports on each.

    Args:
        rank: rank of this worker, which chooses its data.
        num_workers: number of workers.
        pause: time that it sleeps after a step, in steps.
        seconds: length of a stretch.
    """

    def __init__(self, rank, num_workers, pause, seconds):
        import keras
        import tensorflow as tf
        from step_worker import make_batch, make_model

        import tf_onebit.horovod as hvd
        from tf_onebit import Threshold

        self._pause, self._seconds = pause, seconds
        model = make_model()
        self._variables = model.trainable_variables
        sgd = keras.optimizers.SGD(0.1)
        optimizer = hvd.AsynchronousOptimizer(sgd, Threshold(target_density=0.001))
        optimizer.build(self._variables)
        self._dead_reckoning = optimizer.gradient_exchange
        batches = [make_batch(rank + num_workers * i) for i in range(NUM_BATCHES)]
        self._batches = itertools.cycle(batches)
        loss_function = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

        @tf.function
        def train_step(features, labels):
            with tf.GradientTape() as tape:
                loss = loss_function(labels, model(features, training=True))
            gradients = tape.gradient(loss, [v.value for v in self._variables])
            optimizer.apply(gradients, self._variables)
            return loss

        self._train_step = train_step

    def warm_up(self, steps):
        for _ in range(steps):
            self._train_step(*next(self._batches)).numpy()
        self._dead_reckoning.drain("the end of the warm-up", last=True)

    def stretch(self):
        """Trains for a while, with or without others. Returns the measurements."""
        step_ends, staleness = [time.time()], []
        while step_ends[-1] < step_ends[0] + self._seconds:
            start = time.perf_counter()
            self._train_step(*next(self._batches)).numpy()
            time.sleep(self._pause * (time.perf_counter() - start))
            step_ends.append(time.time())
            staleness.append(self._dead_reckoning.metrics()["staleness"])
        self._dead_reckoning.drain("the end of a stretch", last=True)
        density = self._dead_reckoning.built[0].metrics()["density"]
        return {"step_ends": step_ends, "staleness": staleness, "density": density}

    def stretch_without_pump(self):
        """Trains for a while without the other workers, and then undoes it.

        Returns the measurements.
        """
        pump, self._dead_reckoning._pump = self._dead_reckoning._pump, None
        variables = [*self._variables, *self._dead_reckoning.built[0].variables]
        learned = [variable.numpy() for variable in variables]
        noted = self.stretch()
        for variable, value in zip(variables, learned, strict=True):
            variable.assign(value)
        self._dead_reckoning._pump = pump
        return noted

    def weights(self):
        return np.concatenate([variable.numpy().ravel() for variable in self._variables])


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--slowdown", type=float, required=True, help="of the last worker")
    parser.add_argument("--warm-up-steps", type=int, required=True)
    parser.add_argument("--seconds", type=float, required=True, help="of a stretch of training")
    parser.add_argument("--rounds", type=int, required=True, help="of a stretch in each mode")
    arguments = parser.parse_args()
    rank, num_workers = (int(os.environ[f"HOROVOD_{name}"]) for name in ("RANK", "SIZE"))

    import tensorflow as tf

    import tf_onebit.horovod as hvd

    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(2)
    hvd.init()
    pause = arguments.slowdown - 1 if rank == num_workers - 1 else 0.0
    worker = Worker(rank, num_workers, pause, arguments.seconds)
    worker.warm_up(arguments.warm_up_steps)
    together, without = [], []
    for _ in range(arguments.rounds):
        together.append(worker.stretch())
        without.append(worker.stretch_without_pump())
    weights = worker.weights()[::SAMPLE_EVERY]
    print(json.dumps({"together": together, "without": without, "weights": weights.tolist()}))
    hvd.shutdown()


if __name__ == "__main__":
    main()
