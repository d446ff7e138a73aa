"""The report's lines about the compiled ops, and about whether they run on a GPU."""

import dataclasses
import os

from tf_onebit._doctor.fault import Fault

# The lowest that the kernels are compiled for.
OLDEST_COMPUTE_CAPABILITY = (8, 0)


def ops_report():
    """Yields the lines about compiled ops and GPUs."""
    try:
        from tf_onebit.ops import library
    except ImportError as error:
        yield Fault(f"Compiled ops: {error}")
        return
    yield f"Compiled ops: {library.PATH}, on the CPU with {library.simd()} instructions"
    facts = gpu_facts(library)
    if facts.driver_version is None:
        yield (
            "GPUs: not used, training runs on the CPU. This machine has no NVIDIA driver "
            "(libcuda.so.1). If it has a GPU, install the driver."
        )
        return
    if facts.cuda_version:
        yield f"Kernels for GPUs: CUDA {facts.cuda_version}, for {library.gpu_targets()}"
    else:
        yield "Kernels for GPUs: none"
    yield f"NVIDIA driver: for CUDA up to {_dotted(facts.driver_version)}"
    yield f"GPUs that TensorFlow sees: {', '.join(map(str, facts.gpus)) or 'none'}"
    reasons = reasons_against_gpus(facts)
    if not reasons:
        yield "GPUs are used."
    for reason in reasons:
        yield f"Not on a GPU: {reason}"


@dataclasses.dataclass(frozen=True)
class Gpu:
    """GPU as TensorFlow sees it."""

    name: str
    compute_capability: tuple

    def __str__(self):
        return f"{self.name} (compute capability {_dotted(self.compute_capability)})"


@dataclasses.dataclass(frozen=True)
class GpuFacts:
    """Facts that decide whether the ops run on a GPU.

    Attributes:
        cuda_version: of the compiled kernels, for example "13.0.48"; empty without kernels.
        driver_version: latest version of CUDA for the driver, as (major, minor), or None.
        tensorflow_has_cuda: whether TensorFlow is built for GPUs.
        gpus: list of `Gpu`.
        visible_devices: the environment variable CUDA_VISIBLE_DEVICES, or None.
    """

    cuda_version: str
    driver_version: tuple | None
    tensorflow_has_cuda: bool
    gpus: list
    visible_devices: str | None = None


def gpu_facts(library):
    """Returns the `GpuFacts` of this machine.

    Args:
        library: the module `tf_onebit.ops.library`.
    """
    import tensorflow as tf

    from tf_onebit.ops.gpu_driver import driver_version

    gpus = []
    for device in tf.config.list_physical_devices("GPU"):
        details = tf.config.experimental.get_device_details(device)
        gpus.append(
            Gpu(details.get("device_name", device.name), details.get("compute_capability", (0, 0)))
        )
    return GpuFacts(
        library.cuda_version(),
        driver_version(),
        tf.test.is_built_with_cuda(),
        gpus,
        os.environ.get("CUDA_VISIBLE_DEVICES"),
    )


def reasons_against_gpus(facts):
    """Returns the reasons why the ops would not run on a GPU, with remedies: list of sentences.

    Args:
        facts: `GpuFacts`.
    """
    from tf_onebit.ops.gpu_driver import driver_fault

    reasons = []
    if not facts.cuda_version:
        reasons.append(
            "the compiled ops have no kernels for GPUs, because no nvcc was found when they were "
            "built. If TensorFlow sees a GPU, training fails. Install the CUDA toolkit, 12.0 or "
            "later, put its nvcc on the PATH, and build the ops again: python setup.py build_ext "
            "--inplace. Or hide the GPUs: CUDA_VISIBLE_DEVICES=-1"
        )
    if not facts.tensorflow_has_cuda:
        reasons.append(
            "this TensorFlow is built without CUDA. Replace it, and build the ops again: "
            "python -m pip uninstall tensorflow-cpu && "
            'python -m pip install "tensorflow[and-cuda]==2.21.0"'
        )
    fault = driver_fault(facts.cuda_version, facts.driver_version)
    if fault is not None:
        reasons.append(fault)
    if facts.tensorflow_has_cuda and not facts.gpus:
        reasons.append(
            "TensorFlow sees no GPU. Received: "
            f"CUDA_VISIBLE_DEVICES={facts.visible_devices!r}. If nvidia-smi shows one, TensorFlow "
            'does not find its CUDA libraries: python -m pip install "tensorflow[and-cuda]==2.21.0"'
        )
    for gpu in facts.gpus:
        if gpu.compute_capability < OLDEST_COMPUTE_CAPABILITY:
            reasons.append(
                f"{gpu} is too old: the kernels need {_dotted(OLDEST_COMPUTE_CAPABILITY)} or "
                "later. Hide it with CUDA_VISIBLE_DEVICES, so that the ops run on the CPU."
            )
    return reasons


def _dotted(version):
    return ".".join(map(str, version))
