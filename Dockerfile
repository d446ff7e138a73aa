# An image with TensorFlow, tf_onebit and Horovod, and with the program examples/keras_fit/train.py.
# It installs the wheels that `make wheel` has built, so it needs no compiler:
#
#   make wheel
#   docker build --tag tf_onebit .
#   docker run --rm tf_onebit tf-onebit launch -np 2 -- python train.py
#
# For GPUs, with NVIDIA's container toolkit on the hosts:
#
#   docker build --tag tf_onebit:gpu --build-arg "TENSORFLOW=tensorflow[and-cuda]" .
#   docker run --rm --gpus all tf_onebit:gpu tf-onebit doctor

# Horovod's wheel is for the Python that built it: --build-arg PYTHON=3.12 if that was 3.12.
ARG PYTHON=3.11
FROM python:${PYTHON}-slim-bookworm

ARG TENSORFLOW=tensorflow-cpu
RUN --mount=type=bind,source=dist,target=/dist \
    python -m pip install --no-cache-dir --find-links /dist \
        "${TENSORFLOW}==2.21.*" "tf_onebit[horovod]==0.1.*" "scikit-learn==1.9.*"

RUN useradd --create-home --uid 1000 worker
USER 1000
WORKDIR /home/worker
COPY examples/keras_fit/train.py .
CMD ["tf-onebit", "doctor"]
