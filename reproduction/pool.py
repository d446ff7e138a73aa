"""Processes that train side by side."""

import concurrent.futures
import multiprocessing.connection
import os
import threading

import tensorflow as tf


def processes(number, devices=1):
    """Returns a pool of processes to train in, each with some devices.

    Each has one thread, so that a run has the same bits at any load of the machine.
    """
    return concurrent.futures.ProcessPoolExecutor(
        number, multiprocessing.get_context("spawn"), _begin_process, [devices]
    )


def _begin_process(devices):
    threading.Thread(target=_end_with_parent, daemon=True).start()
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(
        cpu, [tf.config.LogicalDeviceConfiguration()] * devices
    )


def _end_with_parent():
    # Otherwise it would finish its run, and wait for the next.
    multiprocessing.connection.wait([multiprocessing.parent_process().sentinel])
    os._exit(1)
