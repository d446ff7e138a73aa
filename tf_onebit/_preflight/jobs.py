"""The job that runs a plan, and the model that the plan is for."""

import importlib
import os

import tensorflow as tf

from tf_onebit._measurement import Alone, Links
from tf_onebit._preflight.source import is_file, look_here, require_source

# Set by `mpirun`. If `horovodrun` starts workers by it, HOROVOD_RANK is not set.
_RANKS_OF_MPI = "OMPI_COMM_WORLD_RANK", "PMI_RANK"


def workers_of_job(in_groups=False):
    """Returns the workers of the job that this process belongs to: `Links`, or `Alone`.

    They are Horovod's workers if `horovodrun` or MPI has started this process, and the workers of
    the TensorFlow cluster if TF_CONFIG describes one.

    Args:
        in_groups: whether links within and between groups of these workers are to be measured.

    Raises:
        ValueError: if Horovod is needed but cannot be used, or TF_CONFIG describes no cluster.
    """
    if "HOROVOD_RANK" in os.environ:
        return _workers(_horovod_engine(in_groups))
    if os.environ.get("TF_CONFIG"):
        if in_groups:
            raise ValueError(
                "Processes of a group or node are those of a Horovod job. Received: --members or "
                "--workers-per-node in a job with TF_CONFIG. Start the plan with horovodrun, or "
                "give --bandwidth."
            )
        from tf_onebit.distribute import MultiWorkerMirroredStrategy

        return _workers(MultiWorkerMirroredStrategy().extended.engine)
    if any(name in os.environ for name in _RANKS_OF_MPI):
        return _workers(_horovod_engine(in_groups))
    return Alone()


def _workers(engine):
    return Links(engine) if engine.world_size > 1 else Alone()


def _horovod_engine(in_groups):
    try:
        import tf_onebit.horovod as hvd
        from tf_onebit.collectives.horovod import HorovodEngine
    except ImportError as error:
        raise ValueError(
            f"This process was started by horovodrun or MPI, and Horovod cannot be used: {error} "
            "Start it with `tf-onebit launch`, or alone."
        ) from error
    hvd.init(process_sets="dynamic" if in_groups else None)
    take_a_gpu(hvd.local_rank())
    return HorovodEngine()


def take_a_gpu(local_rank):
    """Gives each process of a host its own GPU, as programs over Horovod do."""
    gpus = tf.config.list_physical_devices("GPU")
    if gpus:
        tf.config.set_visible_devices(gpus[local_rank % len(gpus)], "GPU")


def require_writable(*paths):
    """Raises ValueError for a file that cannot be written, before all the work; skips None."""
    for path in filter(None, paths):
        directory = os.path.dirname(os.path.abspath(path))
        if not os.access(directory, os.W_OK):
            raise ValueError(f"The folder cannot be written to. Received: {path}. Name another.")
        if os.path.isdir(path) or (os.path.exists(path) and not os.access(path, os.W_OK)):
            raise ValueError(f"The file cannot be written to. Received: {path}. Name another.")


def load_model(source):
    """Returns the model that a user names.

    Args:
        source: path of a file that Keras saved, or "module:function" with the name of a function
            that takes no arguments and returns a compiled model.

    Raises:
        ValueError: if the source is neither, or cannot be loaded.
    """
    require_source(source)
    if is_file(source):
        return _saved_model(source)
    module, _, name = source.partition(":")
    function = getattr(_imported(module), name, None)
    if not callable(function):
        raise ValueError(
            f"The module {module!r} has no function {name!r}, as seen from {os.getcwd()}. "
            f"Received: {source!r}."
        )
    try:
        return function()
    except (Exception, SystemExit) as error:
        raise ValueError(
            f"{source} must return a compiled model when it is called without arguments. Received: "
            f"{type(error).__name__}: {error}"
        ) from error


def _imported(module):
    look_here()
    try:
        return importlib.import_module(module)
    # On import, a script may read data or arguments, or exit.
    except (Exception, SystemExit) as error:
        raise ValueError(
            f"The module {module!r} cannot be imported in {os.getcwd()}: {type(error).__name__}: "
            f'{error}. Put code that must not run on import under `if __name__ == "__main__":`.'
        ) from error


def _saved_model(path):
    import keras

    import tf_onebit.optimizers  # noqa: F401  whose classes may have been saved

    try:
        return keras.models.load_model(path)
    except Exception as error:
        raise ValueError(
            "Keras cannot load the model. If it has layers or functions of your own, name a "
            "function that returns the model: tf-onebit plan train:make_model, for "
            f"make_model of train.py. Received: {path!r}. Keras reports: "
            f"{type(error).__name__}: {error}"
        ) from error
