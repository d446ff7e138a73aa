# `make train` and `make test` set themselves up; nothing is done twice.

# The first Python that is of a supported version and has the module venv.
SUPPORTED := python3.11 python3.12 python3.13
PYTHON ?= $(shell for python in $(SUPPORTED); do \
    $$python -c "import ensurepip, venv" 2>/dev/null && echo $$python && break; done)
VENV := .venv
TENSORFLOW := $(shell sed -n 's/^tensorflow-cpu==\([0-9.]*\).*/\1/p' requirements.txt)
VERSION := $(subst ., ,$(TENSORFLOW))
# It is named after the minor version of the pinned TensorFlow.
LIBRARY := tf_onebit/libtf_onebit_ops_$(word 1,$(VERSION))_$(word 2,$(VERSION)).so

# Tests start hundreds of processes, and each would compile the package again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: setup train test test-unit test-parallel test-nightly rehearse lint docs pictures wheel check-wheel clean

setup: $(VENV)/.requirements $(LIBRARY) $(VENV)/.package $(VENV)/.horovod

train: setup
	$(VENV)/bin/python examples/speech/compare.py

test: test-unit test-parallel

# What runs in one process. Tests of a file share what it has traced, so one process runs them.
# Long files come first, so that no process waits for another in the end.
UNIT := tests/gpu tests/cc tests/examples tests/unit \
    --numprocesses auto --dist loadfile --no-loadscope-reorder
# Jobs, of which two at a time fill the pauses of each other.
PARALLEL := tests/parallel --numprocesses 2 --no-loadscope-reorder

test-unit: setup
	$(VENV)/bin/python -m pytest $(UNIT)

test-parallel: setup
	$(VENV)/bin/python -m pytest $(PARALLEL)

# More cases of the same: other optimizers, types, engines and numbers of workers.
test-nightly: setup
	$(VENV)/bin/python -m pytest $(UNIT) -m nightly
	$(VENV)/bin/python -m pytest $(PARALLEL) -m nightly

# Benchmarks and long trainings, as small as they can be: that they run, not what they measure.
rehearse: setup
	$(VENV)/bin/python -m pytest tests/rehearsal

lint: setup
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/python -m mypy

# Strictly: a reference that leads nowhere, or a docstring that is no valid text, is an error.
docs: setup
	$(VENV)/bin/python -m sphinx -W --keep-going -n --quiet --jobs auto docs build/docs

# The pictures of the site, which are kept beside what draws them.
pictures: setup
	for file in $(filter-out docs/pictures/theme.py,$(wildcard docs/pictures/*.py)); do $(VENV)/bin/python $$file || exit; done

# What users install where there is no compiler: tf_onebit, and Horovod for this Python.
wheel: setup
	rm -rf dist build/wheels
	$(VENV)/bin/python tools/build_horovod.py --wheel-dir build/wheels
	$(VENV)/bin/python tools/build_wheel.py dist build/wheels/horovod-*.whl
	cd dist && sha256sum *.whl *.tar.gz | tee SHA256SUMS

# Trains with the wheels in an environment of their own.
check-wheel: wheel
	tools/check_wheel.sh dist $(PYTHON) $(TENSORFLOW)

# Leaves .venv, and the corpus and Horovod's wheel, which are kept outside of the checkout.
clean:
	rm -rf build dist tf_onebit/libtf_onebit_ops*.so tf_onebit.egg-info .mypy_cache .pytest_cache .ruff_cache
	find . -path ./$(VENV) -prune -o -name __pycache__ -prune -exec rm -rf {} +

# The files .venv/.* record that a step was finished: an interrupted one is repeated.
$(VENV)/.requirements: requirements.txt requirements-lock.txt
	@test -n "$(PYTHON)" || { echo "error: no Python 3.11, 3.12 or 3.13 with its module venv" \
	    "found. Install one (Debian, Ubuntu: sudo apt-get install python3 python3-venv) or say" \
	    "where it is: make PYTHON=/path/to/python3.11" >&2; exit 1; }
	@$(PYTHON) -c "import ensurepip, venv" || { echo "error: $(PYTHON) does not run, or has no" \
	    "module venv. Install it (Debian, Ubuntu: sudo apt-get install python3 python3-venv)" >&2; \
	    exit 1; }
	@command -v g++ >/dev/null || { echo "error: g++ not found, and the operations are compiled" \
	    "with it. Install it (Debian, Ubuntu: sudo apt-get install g++)" >&2; exit 1; }
	@echo "Installing TensorFlow and other packages into $(VENV): some 700 MB, about a minute"
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/python -m pip install --disable-pip-version-check \
	    --requirement requirements.txt --constraint requirements-lock.txt
	@touch $@

# The library is built again when its sources have changed.
$(LIBRARY): setup.py tf_onebit/_version.py $(shell find custom_ops -type f) | $(VENV)/.requirements
	@echo "Compiling the operations: about two minutes at first"
	$(VENV)/bin/python setup.py --quiet build_ext --inplace

# Editable. It finds the library built.
$(VENV)/.package: $(VENV)/.requirements pyproject.toml | $(LIBRARY)
	$(VENV)/bin/python -m pip install --disable-pip-version-check --quiet \
	    --no-build-isolation --no-deps --editable .
	@touch $@

$(VENV)/.horovod: $(VENV)/.requirements tools/build_horovod.py
	$(VENV)/bin/python tools/build_horovod.py
	@touch $@
