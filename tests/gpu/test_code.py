"""Limits for what nvcc makes of the kernels: registers, wide accesses, statements, local memory.

These decide how fast kernels are, and change with harmless-looking edits. No GPU is needed. Wide
accesses and statements are those of PTX. The machine's own instructions are fewer, because ptxas
merges some.
"""

import collections
import re
import subprocess

import pytest

from tests.gpu.devices import NVCC_OPTIONS, ROOT, SOURCES, Cuda
from tests.gpu.skipping import skip_or_fail

KERNELS = [source for source in SOURCES if source.suffix == ".cu"]
# Wide accesses are of 16 bytes: stores to global memory, and loads from there or shared memory. The
# stack has registers that are spilled, and arrays whose index is not known in advance.
Code = collections.namedtuple(
    "Code", "registers wide_loads wide_stores statements stack_bytes", defaults=[0]
)

# What nvcc 13.0 makes of all kernels of float32, and of others of interest. A kernel that is not
# listed needs no stack. Two of other types spill a register: one more for all threads would let a
# multiprocessor run fewer blocks of threads.
EXPECTED = {
    "block_momentum_gpu": {
        "ForFour<3, Moments<float>>": Code(32, 4, 4, 328),
        "ForFour<4, Difference<float>>": Code(30, 6, 2, 328),
        "ForFour<4, Update<float>>": Code(32, 6, 6, 505),
        "ForFour<5, LateUpdate<float>>": Code(32, 10, 6, 641),
    },
    "one_bit_decode_gpu": {
        "DecodeColumns<float, 1, false, false>": Code(40, 0, 16, 957),
        "DecodeColumns<float, 1, false, true>": Code(47, 16, 16, 1290),
        "DecodeColumns<float, 1, true, false>": Code(62, 16, 16, 1450),
        "DecodeColumns<float, 1, true, true>": Code(64, 32, 16, 1751),
        "DecodeColumns<float, 2, false, false>": Code(64, 0, 16, 1622),
        "DecodeColumns<float, 2, false, true>": Code(63, 16, 16, 1950),
        "DecodeColumns<float, 2, true, false>": Code(80, 16, 16, 2080),
        "DecodeColumns<float, 2, true, true>": Code(77, 32, 16, 2372),
        "DecodeColumns<float16, 1, false, false>": Code(40, 0, 0, 991, 8),
        "DecodePlain<float, false>": Code(26, 0, 0, 62),
        "DecodePlain<float, true>": Code(26, 0, 0, 68),
        "DecodeSumColumns": Code(64, 0, 16, 2098),
        "SumPlain": Code(22, 0, 0, 77),
    },
    "one_bit_encode_gpu": {
        "CopyPlain<float>": Code(30, 0, 0, 114),
        "EncodeColumns<Aggregate, float, 16>": Code(80, 0, 0, 2021),
        "EncodeColumns<Aggregate, float, 32>": Code(148, 0, 0, 3222),
        "EncodeColumns<Aggregate, float, 4>": Code(54, 0, 0, 1110),
        "EncodeColumns<Gradients<float>, bfloat16, 16>": Code(80, 0, 0, 2528),
        "EncodeColumns<Gradients<float>, float, 16>": Code(80, 0, 0, 2025),
        "EncodeColumns<Gradients<float>, float, 32>": Code(148, 0, 0, 3226),
        "EncodeColumns<Gradients<float>, float, 4>": Code(54, 0, 0, 1113),
        "EncodeColumns<Messages, bfloat16, 16>": Code(80, 60, 0, 3957, 8),
        "EncodeColumns<Messages, float, 16>": Code(80, 60, 0, 3235),
        "EncodeColumns<Messages, float, 32>": Code(148, 84, 0, 4866),
        "EncodeColumns<Messages, float, 4>": Code(72, 18, 0, 1578),
        "EncodeColumns<ScaledGradients<float>, float, 16>": Code(80, 0, 0, 2138),
        "EncodeColumns<ScaledGradients<float>, float, 32>": Code(150, 0, 0, 3451),
        "EncodeColumns<ScaledGradients<float>, float, 4>": Code(54, 0, 0, 1148),
        "EncodeLongColumns<Aggregate, float>": Code(64, 0, 0, 1359),
        "EncodeLongColumns<Gradients<float>, float>": Code(64, 0, 0, 1361),
        "EncodeLongColumns<Messages, float>": Code(64, 0, 0, 3935),
        "EncodeLongColumns<ScaledGradients<float>, float>": Code(64, 0, 0, 1422),
        "FinishEncode": Code(77, 0, 0, 598),
    },
    "one_bit_scales_gpu": {
        "ForFour<2, Learn<float>>": Code(28, 4, 2, 247),
    },
    "threshold_decode_gpu": {
        "DecodeSumBlocks<float, false>": Code(32, 5, 5, 614),
        "DecodeSumBlocks<float, true>": Code(32, 0, 0, 478),
        "UpdateByRow": Code(20, 0, 0, 104),
    },
    "threshold_encode_gpu": {
        "CountBefore": Code(64, 0, 0, 712),
        "EncodeBlocks<float>": Code(80, 0, 0, 1253),
        "FinishEncode": Code(49, 0, 0, 287),
        "WriteCodes": Code(43, 2, 0, 404),
    },
    "transform_gpu": {
        "AccumulateBlocks": Code(40, 0, 0, 375),
        "ForFour<3, MoveOn>": Code(32, 4, 4, 325),
        "ForFour<3, Normalize>": Code(32, 4, 2, 288),
        "ForFour<4, Adapt>": Code(48, 6, 6, 540),
        "SumRuns": Code(50, 0, 0, 279),
    },
}
OF_OTHER_TYPES = re.compile("float16|double")  # bfloat16, too
# Another nvcc, or a small change, may need so many times the registers and statements.
TOLERANCE = 1.15


def compiled(source, folder):
    """Returns the code of each kernel of a file, by its name without arguments."""
    options = ["-arch=sm_90", "-Xptxas", "-v", "--keep", "--keep-dir", folder]
    command = [Cuda.nvcc(), *NVCC_OPTIONS, *options, "-cubin", "-o", folder / "kernels.cubin"]
    result = subprocess.run([*command, source], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    (ptx,) = folder.glob("*.ptx")
    bodies = dict(re.findall(r"\.entry (\w+)\(.*?\n\{(.*?)\n\}", ptx.read_text(), re.DOTALL))
    of_ptxas = re.findall(
        r"Function properties for (\w+)\n *(\d+) bytes stack frame.*?\n.*?Used (\d+) registers",
        result.stderr,
    )
    code = {}
    for name, stack_bytes, registers in of_ptxas:
        wide_loads = len(re.findall(r"ld\.(?:global|shared)\.v4", bodies[name]))
        wide_stores = len(re.findall(r"st\.global\.cg\.v4", bodies[name]))
        statements = bodies[name].count(";")
        code[name] = Code(int(registers), wide_loads, wide_stores, statements, int(stack_bytes))
    names = subprocess.run(["c++filt", *code], capture_output=True, text=True, check=True)
    return dict(zip(map(short, names.stdout.splitlines()), code.values(), strict=True))


def nvcc_version():
    return subprocess.run([Cuda.nvcc(), "--version"], capture_output=True, text=True).stdout


def test_the_library_has_the_same_options():
    build = (ROOT / "custom_ops" / "CMakeLists.txt").read_text()
    assert "tf_onebit_gpu_kernels PRIVATE -fmad=false -ftz=true --expt-relaxed-constexpr" in build


def short(name):
    """Returns the name of a kernel without its namespaces and arguments."""
    name = re.sub(r"tf_onebit::|gpu::|\(anonymous namespace\)::|void ", "", name)
    return name.split("(")[0].replace(" >", ">")


@pytest.mark.parametrize("source", KERNELS, ids=lambda source: source.stem)
def test_kernels_are_compiled_as_well_as_before(source, tmp_path):
    if Cuda.nvcc() is None:
        skip_or_fail("no nvcc")
    code = compiled(source, tmp_path)
    expected_code = EXPECTED[source.stem]
    listed = expected_code.keys()
    assert {name for name in code if not OF_OTHER_TYPES.search(name)} <= listed <= code.keys()
    if "release 13." not in nvcc_version():
        return  # the table is of that release
    for name in code.keys() - listed:
        assert code[name].stack_bytes == 0, name
    for name, expected in expected_code.items():
        found = code[name]
        assert found.registers <= TOLERANCE * expected.registers, name
        assert found.wide_loads == expected.wide_loads, name
        assert found.wide_stores == expected.wide_stores, name
        assert found.statements <= TOLERANCE * expected.statements, name
        assert found.stack_bytes <= expected.stack_bytes, name
