"""Runs tests that are marked with `workers` in the worker processes of a real job.

    @pytest.mark.workers(2, 3)
    def test_ranks_agree():
        ...

The test's body runs on every rank of two jobs, with two and with three processes. It passes if it
passes on all ranks. All tests share a job of each size, because a job takes seconds to start.

Jobs are Horovod's. `@pytest.mark.workers(2, engines=["horovod", "tensorflow"])` runs the test
once more in a cluster of TensorFlow's. A test may also list its jobs, each with the values of
further parameters:

    @pytest.mark.workers(
        jobs=[("horovod", 3, "arrays"), *nightly_rows(("tensorflow", 2, "arrays"))], also=["form"]
    )
    def test_ranks_agree(form):
        ...
"""

import gc
import itertools
import json
import os
import pathlib
import re
import tempfile

import pytest
from xdist.scheduler import LoadScopeScheduling

import tests.support.untuned_data  # noqa: F401
from tests.support.launch import run_job

SECONDS_PER_TEST = 240
SECONDS_TO_START = 60
# Collecting all garbage takes as long as a small test. Collecting what is new takes less.
TESTS_PER_COLLECTION = 10
_REPORTS_DIR = os.environ.get("TF_ONEBIT_TEST_REPORTS_DIR")
_IS_WORKER = _REPORTS_DIR is not None
# Those that take longest, and are no jobs of many tests.
_LONG_FILES = ("test_backup", "test_engines", "test_ported_programs", "test_strategy_faults")
# A rank that hangs says where, and ends. Then the job ends, too.
_PYTEST = (
    *("-m", "pytest", "-q", "-p", "no:cacheprovider"),
    *("-o", "addopts=--strict-markers"),  # the process that reports has selected the tests
    *("-o", f"faulthandler_timeout={SECONDS_PER_TEST}"),
    *("-o", "faulthandler_exit_on_timeout=true"),
)


def pytest_configure(config):
    config.addinivalue_line(
        "markers",
        "workers(*world_sizes, engines=[...]), or workers(jobs=[...], also=[...]): "
        "run on every rank of jobs of so many processes",
    )
    if _IS_WORKER:
        import keras  # noqa: F401

        from tests.support.ranks import engine

        engine()

        # Garbage is collected between tests. The search leaves out everything that TensorFlow and
        # Keras made on import.
        gc.freeze()
        gc.disable()


# This hook must run first. Otherwise pytest's arguments decide whether world_size comes before the
# parameters of fixtures. Then a test has another id in the job than outside.
@pytest.hookimpl(tryfirst=True)
def pytest_generate_tests(metafunc):
    marker = metafunc.definition.get_closest_marker("workers")
    if marker is not None:
        metafunc.fixturenames += ["engine", "world_size"]
        if "jobs" in marker.kwargs:
            names = ["engine", "world_size", *marker.kwargs.get("also", [])]
            metafunc.parametrize(names, marker.kwargs["jobs"])
            return
        metafunc.parametrize("engine", marker.kwargs.get("engines", ["horovod"]))
        metafunc.parametrize("world_size", marker.args)


if _IS_WORKER:
    from tests.support.ranks import gather, rank

    _tests = itertools.count()

    def pytest_collection_modifyitems(items):
        wanted = set((pathlib.Path(_REPORTS_DIR) / "tests").read_text().splitlines())
        items[:] = [item for item in items if item.nodeid in wanted]

    def pytest_runtest_logreport(report):
        if report.when == "call" or report.failed:
            line = json.dumps([report.nodeid, report.longreprtext if report.failed else ""])
            path = pathlib.Path(_REPORTS_DIR) / f"rank_{rank()}"
            with path.open("a") as file:
                file.write(line + "\n")

    @pytest.fixture(autouse=True)
    def all_ranks_together():
        """Starts a test on all ranks at once, in a fresh Keras session."""
        import keras

        keras.utils.clear_session(free_memory=False)
        gc.collect(0 if next(_tests) % TESTS_PER_COLLECTION else 2)
        keras.utils.set_random_seed(0)
        gather(None)

else:

    @pytest.fixture(scope="module", autouse=True)
    def without_packages_for_plots_and_data():
        """Hides packages that Keras imports if they are installed, so that jobs start sooner."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("TF_ONEBIT_TESTS_WITHOUT", "sklearn matplotlib")
            yield

    @pytest.fixture
    def all_packages(monkeypatch):
        """Lets jobs import all installed packages."""
        monkeypatch.delenv("TF_ONEBIT_TESTS_WITHOUT")

    def pytest_xdist_make_scheduler(config, log):
        return _Scheduler(config, log)

    def pytest_collection_modifyitems(items):
        # So that no process waits for the other in the end.
        items.sort(key=lambda item: item.path.stem not in _LONG_FILES)

    @pytest.hookimpl(tryfirst=True)
    def pytest_pyfunc_call(pyfuncitem):
        if pyfuncitem.get_closest_marker("workers") is None:
            return None
        _job_of(pyfuncitem).check(pyfuncitem.nodeid)
        return True


class _Scheduler(LoadScopeScheduling):
    """A scheduler that keeps the tests of a job together, and those that share fixtures."""

    def _split_scope(self, nodeid):
        job = re.search(r"\[(horovod|nodes|tensorflow)-(\d+)", nodeid)
        return job[0] if job else nodeid.split("::")[0]


class _TestJob:
    """A job that runs tests once, and keeps their results.

    Args:
        items: list of pytest's items.
        engine: "horovod", "nodes" (Horovod on two nodes) or "tensorflow".
        world_size: number of workers.
    """

    def __init__(self, items, engine, world_size):
        tests = [item.nodeid for item in items]
        modules = list(dict.fromkeys(str(item.path) for item in items))
        self.world_size = world_size
        with tempfile.TemporaryDirectory() as reports_dir:
            (pathlib.Path(reports_dir) / "tests").write_text("\n".join(tests))
            try:
                self.end = run_job(
                    engine,
                    world_size,
                    [*_PYTEST, *modules],
                    SECONDS_TO_START + SECONDS_PER_TEST * len(tests),
                    TF_ONEBIT_TEST_REPORTS_DIR=reports_dir,
                    PYTEST_ADDOPTS="",  # meant for the process that reports
                ).output
            except TimeoutError as error:
                self.end = str(error)
            self.failures = [
                dict(map(json.loads, file.read_text().splitlines())) if file.exists() else {}
                for file in (
                    pathlib.Path(reports_dir) / f"rank_{rank}" for rank in range(world_size)
                )
            ]

    def check(self, test):
        for rank, failures in enumerate(self.failures):
            if failures.get(test, "did not run"):
                reason = failures.get(test, f"The test did not run. The job said:\n{self.end}")
                pytest.fail(f"On rank {rank} of {self.world_size}:\n{reason}", pytrace=False)


_jobs = {}


def _job_of(item):
    job = _job_key(item)
    if job not in _jobs:
        items = [other for other in item.session.items if _job_key(other) == job]
        _jobs[job] = _TestJob(items, *job)
    return _jobs[job]


def _job_key(item):
    """Returns engine and number of workers, or None and None."""
    params = item.callspec.params if hasattr(item, "callspec") else {}
    return params.get("engine"), params.get("world_size")
