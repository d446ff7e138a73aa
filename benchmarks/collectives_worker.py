"""One worker of `collectives.py`: times Horovod's collectives."""

import argparse
import json
import os
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import horovod.tensorflow as hvd
import tensorflow as tf

PAUSE_SECONDS = 0.2  # links become idle meanwhile


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bytes", type=int, required=True, help="that each worker sends")
    parser.add_argument("--repetitions", type=int, required=True)
    arguments = parser.parse_args()
    hvd.init()
    words = tf.zeros([arguments.bytes // 4])
    collectives = {
        # Each worker sends one row and keeps the other.
        "all-to-all": lambda: hvd.alltoall(tf.stack([words, words]), name="all_to_all"),
        "all-gather": lambda: hvd.allgather(words, name="all_gather"),
        "all-reduce": lambda: hvd.allreduce(words, op=hvd.Sum, name="all_reduce"),
    }
    seconds = {name: [] for name in collectives}
    for _ in range(1 + arguments.repetitions):
        for name, collective in collectives.items():
            time.sleep(PAUSE_SECONDS)
            hvd.allreduce(tf.zeros([]), name="all_ready")
            start = time.perf_counter()
            collective()
            seconds[name].append(time.perf_counter() - start)
    print(json.dumps({name: times[1:] for name, times in seconds.items()}))
    hvd.shutdown()


if __name__ == "__main__":
    main()
