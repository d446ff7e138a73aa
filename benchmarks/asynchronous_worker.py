"""One worker of `asynchronous.py`: trains the papers' DNN at its own pace, and notes its steps."""

import argparse
import itertools
import json
import os
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

# So many that they are not learned by heart: then gradients, and the density, stay what they are.
NUM_BATCHES = 64
# Of the weights at the end.
SAMPLE_EVERY = 9001


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--slowdown", type=float, required=True, help="of the last worker")
    parser.add_argument("--warm-up-steps", type=int, required=True)
    parser.add_argument("--seconds", type=float, required=True, help="of a stretch of training")
    parser.add_argument("--rounds", type=int, required=True, help="of a stretch in each mode")
    parser.add_argument("--alone", action="store_true", help="in one mode only, without Horovod")
    arguments = parser.parse_args()
    rank, num_workers = (int(os.environ[f"HOROVOD_{name}"]) for name in ("RANK", "SIZE"))
    if arguments.alone:
        for name in [name for name in os.environ if name.startswith("HOROVOD_")]:
            del os.environ[name]

    import keras
    import tensorflow as tf
    from step_worker import make_batch, make_model

    import tf_onebit.horovod as hvd
    from tf_onebit import Threshold

    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(2)
    hvd.init()
    model = make_model()
    sgd = keras.optimizers.SGD(0.1)
    optimizer = hvd.AsynchronousOptimizer(sgd, Threshold(target_density=0.001))
    optimizer.build(model.trainable_variables)
    batches = itertools.cycle([make_batch(rank + num_workers * i) for i in range(NUM_BATCHES)])
    loss_function = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    @tf.function
    def train_step(features, labels):
        with tf.GradientTape() as tape:
            loss = loss_function(labels, model(features, training=True))
        gradients = tape.gradient(loss, [v.value for v in model.trainable_variables])
        optimizer.apply(gradients, model.trainable_variables)
        return loss

    dead_reckoning = optimizer.gradient_exchange
    for _ in range(arguments.warm_up_steps):
        train_step(*next(batches)).numpy()
    dead_reckoning.drain("the end of the warm-up")
    pump = dead_reckoning._pump

    def stretch(pump):
        """What a stretch of training with or without a pump was like."""
        dead_reckoning._pump = pump
        step_ends, staleness = [time.time()], []
        while step_ends[-1] < step_ends[0] + arguments.seconds:
            start = time.perf_counter()
            train_step(*next(batches)).numpy()
            if rank == num_workers - 1:
                time.sleep((arguments.slowdown - 1) * (time.perf_counter() - start))
            step_ends.append(time.time())
            staleness.append(dead_reckoning.measures()["staleness"])
        dead_reckoning.drain("the end of a stretch")
        density = dead_reckoning.built[0].measures()["density"]
        return {"step_ends": step_ends, "staleness": staleness, "density": density}

    together, without = [], []
    for _ in range(arguments.rounds):
        if not arguments.alone:
            together.append(stretch(pump))
        learned = [variable.numpy() for variable in model.trainable_variables]
        without.append(stretch(None))
        for variable, value in zip(model.trainable_variables, learned, strict=True):
            variable.assign(value)  # what the others do not know of is forgotten
    weights = tf.concat([tf.reshape(v.value, [-1]) for v in model.trainable_variables], axis=0)
    print(
        json.dumps(
            {
                "together": together,
                "without": without,
                "weights": weights[::SAMPLE_EVERY].numpy().tolist(),
            }
        )
    )
    hvd.shutdown()


if __name__ == "__main__":
    main()
