#!/bin/sh
# Installs the wheels of a folder into a new environment, without a compiler, and trains with them:
# in a strategy of one process, on two workers of `tf-onebit launch`, and, where the folder has a
# wheel of Horovod for this Python and this TensorFlow, on two workers of horovodrun.
#
#   tools/check_wheel.sh dist python3.12 2.21.0
set -eu
if [ $# -ne 3 ]; then
    echo "usage: tools/check_wheel.sh FOLDER PYTHON VERSION_OF_TENSORFLOW" >&2
    exit 2
fi
wheels=$(cd "$1" && pwd) python=$2 tensorflow=$3
program=$(cd "$(dirname "$0")/.." && pwd)/examples/keras_fit/train.py
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"  # nothing of the checkout is imported
export TF_CPP_MIN_LOG_LEVEL=2

"$python" -m venv environment
PATH=$folder/environment/bin:$PATH
install() {
    python -m pip install --quiet --disable-pip-version-check --find-links "$wheels" "$@"
}
install "tensorflow-cpu==$tensorflow" scikit-learn
start=$(date +%s)
install tf_onebit
tag=$(python -c 'import sys; print("cp%d%d" % sys.version_info[:2])')
horovod=$(find "$wheels" -name "horovod-*+tf${tensorflow%.*}-$tag-*.whl")
[ -z "$horovod" ] || install "$horovod"
tf-onebit doctor
python "$program" --engine mirrored
tf-onebit launch -np 2 -- python "$program"
[ -z "$horovod" ] || horovodrun -np 2 python "$program" --engine horovod
echo "The wheels work with TensorFlow $tensorflow, after $(($(date +%s) - start)) seconds."
