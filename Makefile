# `make train` and `make test` set themselves up; nothing is done twice.

PYTHON ?= python3.11
VENV := .venv
LIBRARY := tf_onebit/libtf_onebit_ops.so

# Tests start hundreds of processes, and each would compile the package again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: setup train test test-unit test-parallel rehearse lint docs clean

setup: $(VENV)/.requirements $(VENV)/.package $(LIBRARY) $(VENV)/.horovod

train: setup
	$(VENV)/bin/python examples/speech/compare.py

test: test-unit test-parallel

# What runs in one process. Tests of a file share what it has traced, so one process runs them.
# Long files come first, so that no process waits for another in the end.
test-unit: setup
	$(VENV)/bin/python -m pytest tests/gpu tests/cc tests/examples tests/unit \
	    --numprocesses auto --dist loadfile --no-loadscope-reorder

# Jobs, of which two at a time fill the pauses of each other.
test-parallel: setup
	$(VENV)/bin/python -m pytest tests/parallel --numprocesses 2 --no-loadscope-reorder

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

# Leaves .venv, and the corpus and Horovod's wheel, which are kept outside of the checkout.
clean:
	rm -rf build $(LIBRARY) tf_onebit.egg-info .mypy_cache .pytest_cache .ruff_cache
	find . -path ./$(VENV) -prune -o -name __pycache__ -prune -exec rm -rf {} +

# The files .venv/.* record that a step was finished: an interrupted one is repeated.
$(VENV)/.requirements: requirements.txt requirements-lock.txt
	@command -v $(PYTHON) >/dev/null || { echo "error: $(PYTHON) not found. Install it (Debian," \
	    "Ubuntu: sudo apt-get install python3.11 python3.11-venv) or say where it is:" \
	    "make PYTHON=/path/to/python3.11" >&2; exit 1; }
	@$(PYTHON) -c "import ensurepip, venv" 2>/dev/null || { echo "error: $(PYTHON) has no venv" \
	    "module. Install it (Debian, Ubuntu: sudo apt-get install python3.11-venv)" >&2; exit 1; }
	@command -v g++ >/dev/null || { echo "error: g++ not found, and the operations are compiled" \
	    "with it. Install it (Debian, Ubuntu: sudo apt-get install g++)" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/python -m pip install --disable-pip-version-check --quiet \
	    --requirement requirements.txt --constraint requirements-lock.txt
	@touch $@

# An editable installation also builds the library ...
$(VENV)/.package: $(VENV)/.requirements pyproject.toml
	$(VENV)/bin/python -m pip install --disable-pip-version-check --quiet \
	    --no-build-isolation --no-deps --editable .
	@touch $@

# ... and this builds it again when its sources have changed.
$(LIBRARY): setup.py tf_onebit/_version.py $(shell find custom_ops -type f) | $(VENV)/.package
	$(VENV)/bin/python setup.py --quiet build_ext --inplace

$(VENV)/.horovod: $(VENV)/.requirements tools/build_horovod.py
	$(VENV)/bin/python tools/build_horovod.py
	@touch $@
