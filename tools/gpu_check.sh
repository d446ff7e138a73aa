#!/usr/bin/env bash
# Checks the kernels on a GPU in at most six minutes: build, tests, speed, counters, sanitizers.
#
#     tools/gpu_check.sh [--device emulated] [--seconds 360] [FOLDER FOR RESULTS]
#
# It needs nvcc 12 or later, CuPy, pytest, pytest-xdist and NumPy, but no TensorFlow. PyTorch and ncu
# are used if they are there. A stage that fails or takes too long does not stop the others, and gets
# at most the seconds that are left. The last line names the stages that failed, and the exit status
# is their number.
set -uo pipefail
device=cuda
seconds=360
results=
while [ $# -gt 0 ]; do
  case $1 in
    --device) device=$2; shift 2 ;;
    --seconds) seconds=$2; shift 2 ;;
    *) results=$(realpath -m "$1"); shift ;;
  esac
done
cd "$(dirname "${BASH_SOURCE[0]}")/.."
results=${results:-results/gpu_check}
python=${PYTHON:-python3}
# Some tests of a GPU have no device in their names.
if [ "$device" = cuda ]; then tests="not emulated"; else tests="not cuda"; fi
mkdir -p "$results"
export PYTHONUNBUFFERED=1 PATH="$PATH:/usr/local/cuda/bin"
failed=()

# stage NAME SECONDS COMMAND...: runs a command with a time limit. Its output goes to NAME.log.
to_stop=5  # seconds for a command that does not end when it is told to
stage() {
  local name=$1 limit=$2 start=$SECONDS status
  local left=$((seconds - to_stop - SECONDS))
  shift 2
  if [ "$limit" -gt "$left" ]; then limit=$left; fi
  if [ "$limit" -gt 0 ]; then
    timeout --kill-after "$to_stop" "$limit" "$@" >"$results/$name.log" 2>&1
    status=$?
  else
    echo "not run: no time is left" >"$results/$name.log"
    status=124  # as of timeout
  fi
  echo "== $name: status $status, $((SECONDS - start)) s of $limit"
  if [ "$status" -ne 0 ]; then
    failed+=("$name")
    tail -n 25 "$results/$name.log"
  fi
}

# library DEVICE: builds the kernels for a device.
library() {
  "$python" -c "from tests.gpu import devices; devices.library_for(devices.$1)"
}
build() {
  local emulated_job
  library Emulated &
  emulated_job=$!
  if [ "$device" = cuda ]; then library Cuda || return; fi
  wait "$emulated_job"
}
export -f library build
export python device

facts() {
  "$python" -V
  if [ "$device" = cuda ]; then
    nvidia-smi --query-gpu=name,driver_version,clocks.sm,clocks.mem,clocks.max.sm --format=csv
    nvcc --version | tail -n 2
  fi
}
export -f facts

KERNELS="EncodeColumns|FinishEncode|DecodeColumns|DecodeSumColumns|EncodeBlocks|CountBefore|WriteCodes|DecodeSumBlocks"
KERNELS+="|ForFour|AccumulateBlocks|SumRuns"
ROWS=(
  "1-bit encode" "1-bit encode, scaled" "1-bit encode, bfloat16 residual"
  "1-bit decode" "1-bit decode, scaled" "1-bit decode and add" "1-bit scales learned"
  "1-bit aggregate of 8" "1-bit decode and sum of 8"
  "1-bit decode, 2 bits" "1-bit decode, scaled, 2 bits" "1-bit decode and add, 2 bits"
  "1-bit aggregate of 8, 2 bits"
  "threshold encode" "threshold decode and sum of 8" "threshold decode and add of 8"
  "momentum" "Adam" "AdaGrad, averages" "AdaGrad, normalized" "block update"
)
# So many kernels prepare inputs, and so many run when each row runs for the first time. More would
# be the same again.
LAUNCHES=$((10 + 30))
COUNTERS="gpu__time_duration.sum,dram__throughput.avg.pct_of_peak_sustained_elapsed"
COUNTERS+=",dram__bytes_read.sum,dram__bytes_write.sum,lts__t_sectors_op_write.sum"
COUNTERS+=",sm__inst_executed.sum,smsp__issue_active.avg.pct_of_peak_sustained_active"
COUNTERS+=",sm__warps_active.avg.pct_of_peak_sustained_active,launch__registers_per_thread"

stage facts 20 bash -c facts
cat "$results/facts.log"
stage build 90 bash -c build
stage tests 180 "$python" -m pytest -q -n 8 -m "" tests/gpu -k "$tests" -rs \
  --ignore tests/gpu/test_sanitizer.py --ignore tests/gpu/test_check.py
tail -n 3 "$results/tests.log"
if [ "$device" = cuda ]; then
  # Nothing else may use the GPU meanwhile.
  stage benchmark 120 "$python" benchmarks/gpu.py --output "$results/benchmark.json"
  tail -n 40 "$results/benchmark.log"
  if command -v ncu >/dev/null; then
    stage counters 90 ncu --csv --page raw --clock-control none --metrics "$COUNTERS" \
      -k "regex:$KERNELS" -c "$LAUNCHES" "$python" benchmarks/gpu.py --rounds 1 --launches 1 \
      --rows "${ROWS[@]}" --output "$results/of_counters.json"
    stage table 10 "$python" tools/gpu_counters.py "$results/counters.log"
    cat "$results/table.log"
  fi
  # The tools share the GPU.
  stage sanitizers 150 "$python" -m pytest -q -n 4 -m "" tests/gpu/test_sanitizer.py
  tail -n 2 "$results/sanitizers.log"
else
  stage benchmark 120 "$python" benchmarks/gpu.py --device emulated --widths 64 1024 --rounds 1 \
    --launches 1 --output "$results/benchmark.json"
fi
echo "took $SECONDS s of $seconds"
echo "failed: ${failed[*]:-none}"
exit "${#failed[@]}"
