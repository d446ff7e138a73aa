"""`tf-onebit plan` with one process: its output, and the arguments that it refuses."""

import dataclasses
import json
import re
import sys
import types
import zipfile

import keras
import pytest
import tensorflow as tf

import tf_onebit
import tf_onebit.horovod as hvd
from tests.support import planned
from tests.support.programs import run_python
from tf_onebit import Delayed, FullPrecision, Local, OneBit, Threshold, WarmStart
from tf_onebit import _cli as cli
from tf_onebit._measurement import Alone
from tf_onebit._preflight import jobs, planning, report
from tf_onebit._preflight.block_ends import Blocks
from tf_onebit._preflight.doubts import doubts_about
from tf_onebit._preflight.effects import notes_on
from tf_onebit._preflight.measurements import Measurements
from tf_onebit._preflight.planning import Plan, make_plan
from tf_onebit._preflight.program import lines_for
from tf_onebit.planner import (
    Bucket,
    Collective,
    Computation,
    Method,
    Prediction,
    uniform_links,
)

MODEL = "tests.support.planned:make_model"


def plan(capsys, *arguments):
    status = cli.main(["plan", *map(str, arguments)])
    output = capsys.readouterr()
    return status, output.out, output.err


def test_plan_as_text_json_and_plot(capsys, tmp_path):
    files = tmp_path / "plan.json", tmp_path / "plan.png"
    arguments = [MODEL, "--workers", 2, 4, "--bandwidth", "10mbit", "--latency", 2]
    arguments += ["--per-replica-batch-size", 8, "--json", files[0], "--plot", files[1]]
    status, output, _ = plan(capsys, *arguments)
    assert status == 0
    assert output.startswith("Links: 10 Mbit/s and 2 ms, assumed.")
    assert "2 workers, 8 samples each per step" in output
    assert "Advice for 2 workers:" in output and "Advice for 4 workers:" in output
    content = json.loads(files[0].read_text())
    assert content["sizes"] == [16 * 64, 64, 64 * 40, 40]
    assert sorted(map(int, content["computations"])) == [4, 8, 16]
    by_method = {p["method"]: p for p in content["predictions"] if p["workers"] == 4}
    values = sum(content["sizes"])
    assert by_method["full precision"]["sent_bytes"] == pytest.approx(1.5 * 4 * values, rel=0.01)
    assert {p["workers"] for p in content["predictions"]} == {2, 4}
    assert all(p["step_seconds"] > 0 for p in content["predictions"])
    assert list(content["advice"]) == ["2", "4"]
    assert all(advice["sentences"] for advice in content["advice"].values())
    assert files[1].read_bytes().startswith(b"\x89PNG")


def test_a_plot_shows_full_precision_and_the_three_fastest_others():
    names = ["full precision", "slow", "fast", "slower", "fastest", "middle"]
    predictions = [
        Prediction(name, workers, 1.0, 1.0, 0.0, 0.0, 0.0, workers * part, "sending")
        for workers in (2, 4)
        for name, part in zip(names, (0.1, 0.4, 0.8, 0.3, 0.9, 0.6), strict=True)
    ]
    shown = report.lines_of_plot(types.SimpleNamespace(predictions=predictions))
    assert [name for (_, name), _ in shown] == ["full precision", "fastest", "fast", "middle"]
    assert shown[1] == ((1, "fastest"), {2: 1.8, 4: 3.6})


def test_large_numbers_have_no_exponents(capsys):
    links = "--bandwidth", "10gbit", "--latency", 100
    status, output, errors = plan(capsys, MODEL, "--workers", 2, *links)
    assert status == 0, errors
    assert output.startswith("Links: 10,000 Mbit/s and 100 ms, assumed.")
    assert "e+" not in output


def test_saved_model_is_planned_for_and_not_changed(capsys, tmp_path):
    path = tmp_path / "model.keras"
    planned.make_text_model().save(path)
    before = path.read_bytes()
    status, output, errors = plan(capsys, path, "--workers", 2, "--unknown-size", 5)
    assert status == 0, errors
    assert path.read_bytes() == before
    assert "assumed" in output


def test_fixed_batches_schedules_and_loss_scales_are_taken_as_they_are(capsys, tmp_path):
    path = tmp_path / "plan.json"
    model = "tests.support.planned:make_model_of_fixed_batches"
    status, output, errors = plan(capsys, model, "--workers", 3, "--json", path)
    assert status == 0, errors
    content = json.loads(path.read_text())
    assert list(content["computations"]) == ["6"]
    assert content["per_replica_batch_size"] == 6
    assert "3 workers, 6 samples each per step" in output
    assert re.search(r"With 6 samples per worker and step its exchange costs \d+ % of", output)


def sent_bytes(path):
    """Returns the bytes that a worker sends in a step, by method."""
    return {p["method"]: p["sent_bytes"] for p in json.loads(path.read_text())["predictions"]}


def test_embeddings_send_the_rows_of_a_step_and_all_of_them_in_a_block(capsys, tmp_path):
    path = tmp_path / "plan.json"
    arguments = ["--workers", 2, "--per-replica-batch-size", 8, "--unknown-size", 16]
    model = "tests.support.planned:make_text_model"
    assert plan(capsys, model, *arguments, "--json", path)[0] == 0
    sent = sent_bytes(path)
    # 128 words of a vocabulary of 50: each row is sent once.
    rows, row_bytes, index_bytes, others_bytes = 50, 4 * 8, 4, 4 * (8 * 3 + 3)
    in_a_step = rows * (row_bytes + index_bytes) + others_bytes
    assert sent["full precision"] == pytest.approx(in_a_step, abs=16)
    # Its Adam's moments are included. BlockMomentum corrects them in full precision only.
    of_weights = 4 * 50 * 8 + others_bytes
    assert sent["blocks of 16, full precision"] == pytest.approx(3 * of_weights / 16, abs=4)
    assert sent["blocks of 16, 1-bit"] == pytest.approx(of_weights / 16, abs=4)
    # For another number of samples, the number of rows is unknown.
    sentences = json.loads(path.read_text())["advice"]["2"]["sentences"]
    assert any(re.match("With 8 samples per worker and step its exchange", s) for s in sentences)


def test_fragments_and_overlap_send_weights_alone(capsys, tmp_path):
    path = tmp_path / "plan.json"
    model = "tests.support.planned:make_model_with_keras_adam"
    turns = ["--fragments", 2, "--overlap", 3]
    status, output, _ = plan(capsys, model, "--workers", 2, "--json", path, *turns)
    assert status == 0
    of_weights = 4 * (16 * 64 + 64 + 64 * 40 + 40)
    sent = sent_bytes(path)["blocks of 16 in 2 fragments, overlap 3, full precision"]
    assert sent == pytest.approx(of_weights / 16, rel=0.01)
    # Any optimizer keeps its moments.
    assert "does not correct the moments" not in output


@pytest.mark.parametrize(
    "arguments, reason",
    [
        (["--fragments", 17], "at most sync_period.*fragments=17 with sync_period=16"),
        (["--sync-period", 4, "--overlap", 5], "overlap=5 with sync_period=4"),
        (["--fragments", 3], "fragments=3 for a model of 2 such layers"),
        (["--members", 2, "--overlap", 5], "--members 2 with --overlap 5. Leave out one"),
    ],
    ids=str,
)
def test_refuses_turns_that_do_not_fit_into_a_block(capsys, arguments, reason):
    status, _, errors = plan(capsys, MODEL, *arguments)
    assert status == 1
    assert re.search(reason, errors)


def test_narrow_values_are_sent_as_they_are(capsys, tmp_path):
    path = tmp_path / "plan.json"
    model = "tests.support.planned:make_model_of_narrow_weights"
    assert plan(capsys, model, "--workers", 2, "--json", path)[0] == 0
    assert sent_bytes(path)["full precision"] == pytest.approx(2 * 16 * 8, abs=16)


def test_moments_that_are_only_averaged_are_sent_in_full_precision(capsys, tmp_path):
    path = tmp_path / "plan.json"
    model = "tests.support.planned:make_model_with_keras_adam"
    assert plan(capsys, model, "--workers", 2, "--json", path)[0] == 0
    one_bit, full = (sent_bytes(path)[f"blocks of 16, {n}"] for n in ("1-bit", "full precision"))
    of_weights = 4 * (16 * 64 + 64 + 64 * 40 + 40)
    assert full == pytest.approx(3 * of_weights / 16, rel=0.01)
    assert 2 * of_weights / 16 < one_bit < 2.2 * of_weights / 16


def test_gathered_gradients_are_planned_as_steps_that_exchange(capsys):
    model = "tests.support.planned:make_model_that_gathers_gradients"
    status, output, errors = plan(capsys, model, "--workers", 2)
    assert status == 0, errors
    assert "accumulates the gradients of 8 steps before it exchanges them" in output


@pytest.mark.parametrize(
    "model, message",
    [
        ("nowhere.keras", "There is no such file. Received: 'nowhere.keras'"),
        ("model", "module:function with a function that returns a compiled model. Received"),
        ("no_such_module:make", "There is no module 'no_such_module'"),
        ("tests.support.ends_when_imported:make", "SystemExit: usage.*under `if __name__"),
        ("tests.support.planned:none", "has no function 'none'"),
        ("tests.support.planned:keras", "has no function 'keras'"),
        ("tests.support.planned:fail", "without arguments. Received: RuntimeError: no such corpus"),
        ("tests.support.planned:end", "without arguments. Received: SystemExit: 3"),
        ("tests.support.planned:make_list", r"needs a Keras model. Received: \[1, 2\]"),
        ("tests.support.planned:make_uncompiled_model", "which is not compiled. Call"),
        (
            "tests.support.planned:make_unbuilt_model",
            "which was not made from a keras.Input. Begin",
        ),
        ("tests.support.planned:make_model_with_an_optimizer_without_config", "get_config return"),
        ("tests.support.planned:make_frozen_model", "which has no trainable weights"),
        ("tests.support.planned:make_text_model", r"shape \(None, None\).*--unknown-size 128"),
    ],
)
def test_refuses_models_that_cannot_be_measured(capsys, model, message):
    status, output, errors = plan(capsys, model, "--workers", 2)
    assert status == 1 and output == ""
    assert errors.startswith("tf-onebit plan: ")
    assert re.search(message, errors), errors


def test_refuses_a_file_that_is_no_model(capsys, tmp_path):
    path = tmp_path / "model.keras"
    path.write_text("nothing")
    status, _, errors = plan(capsys, path)
    assert status == 1
    assert f"this file is not a complete one. Received: '{path}'" in errors
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("config.json", "nothing")
    status, _, errors = plan(capsys, path)
    assert status == 1
    hint = "Keras cannot load the model. If it has layers or functions of your own, name a function"
    assert errors.startswith(f"tf-onebit plan: {hint} that returns the model")


def test_says_when_a_model_does_not_take_what_stands_for_open_sizes(capsys):
    model = "tests.support.planned:make_image_model"
    status, _, errors = plan(capsys, model, "--unknown-size", 2)
    # The message is below the notes about the measurements.
    assert status == 1 and len(errors.splitlines()) == 2
    assert "--unknown-size 2, which fails with: " in errors and errors.endswith(
        " Give another size.\n"
    )
    assert "in user code" not in errors
    assert re.search(r"fails with: \S.*(negative|Negative|shape|size)", errors), errors


def test_refuses_folders_that_are_not_there_before_it_measures(capsys):
    status, _, errors = plan(capsys, MODEL, "--json", "/no/such/folder/plan.json")
    assert status == 1
    assert "folder cannot be written to. Received: /no/such/folder/plan.json" in errors


@pytest.mark.parametrize("option", ["--json", "--plot"])
def test_refuses_files_that_cannot_be_written(capsys, tmp_path, option):
    folder = tmp_path / "plan.png"
    folder.mkdir()
    status, _, errors = plan(capsys, MODEL, option, folder)
    assert status == 1
    assert f"file cannot be written to. Received: {folder}" in errors


def test_refuses_plots_of_unknown_types(capsys):
    status, _, errors = plan(capsys, MODEL, "--plot", "plan.xyz")
    assert status == 1
    assert re.search(r"must end in one of .*png.*svg.* Received: plan.xyz", errors)


def test_says_that_workers_share_processors():
    one = Prediction("full precision", 2, 0.2, 0.2, 0.0, 0.0, 0.0, 1.0, "computation")
    advice = {2: types.SimpleNamespace(method="full precision", sentences=[])}
    computations, links = {8: Computation(0.1, 0.1)}, uniform_links(1e6, 0.0)
    made = Plan(8, [10], computations, 0.1, links, 2, [one], advice, {}, [])
    assert "Workers share processors: one worker alone takes 100 ms." in report.text(made)
    apart = dataclasses.replace(made, alone_seconds=0.2)
    assert "share" not in report.text(apart)


def planned_for(**options):
    return types.SimpleNamespace(blocks=Blocks(16), target_density=0.001, **options)


IN_BLOCKS = Method("blocks of 16, 1-bit", [], sync_period=16, template=OneBit())
ONE_BIT = Method("1-bit", [], template=OneBit())


def notes_with(optimizer, method=IN_BLOCKS, jit_compile=False):
    model = planned.make_model()
    model.compile(optimizer, loss="mse", jit_compile=jit_compile)
    return notes_on(method, model)


def test_says_which_optimizers_blocks_need():
    (sentence,) = notes_with(keras.optimizers.Adam())
    assert "does not correct the moments of Adam" in sentence
    assert "tf_onebit.optimizers" in sentence
    (sentence,) = notes_with(keras.optimizers.Ftrl())
    assert "of Ftrl. Use moment_correction=" in sentence  # there is no other Ftrl
    assert notes_with(keras.optimizers.Adam(), ONE_BIT) == []
    for optimizer in (keras.optimizers.SGD(0.1, momentum=0.9), tf_onebit.optimizers.Adam()):
        assert notes_with(optimizer) == []


def test_says_what_stands_in_the_way_of_an_exchange():
    (sentence,) = notes_with("sgd", ONE_BIT, jit_compile=True)
    assert "Compile the model with jit_compile=False" in sentence
    scaled = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1))
    (sentence,) = notes_with(scaled, ONE_BIT)
    assert "no exchange overlaps with the backward pass" in sentence
    # Workers in blocks exchange nothing that XLA would have to compile, or that must be checked.
    assert notes_with(tf_onebit.optimizers.Adam(), jit_compile=True) == []
    assert notes_with(keras.optimizers.LossScaleOptimizer(tf_onebit.optimizers.Adam())) == []


def skipping_optimizer():
    hvd.init()
    return hvd.DistributedOptimizer(keras.optimizers.SGD(0.1), on_nonfinite="skip")


@pytest.mark.parametrize(
    "make_optimizer, overlaps",
    [
        (lambda: keras.optimizers.SGD(0.1), True),
        (lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1)), False),
        (skipping_optimizer, False),
    ],
)
def test_gradients_that_are_checked_first_overlap_with_nothing(
    monkeypatch, make_optimizer, overlaps
):
    buckets = [Bucket(1e6, (Collective(0.0, "all_reduce", 4e6),)) for _ in range(8)]
    methods = {
        2: [
            Method("1-bit", buckets, template=OneBit()),
            Method("1-bit, delayed", buckets, 1, template=OneBit()),
        ]
    }
    computations, links = {8: Computation(0.1, 0.2)}, uniform_links(125e6, 0.0)
    measured = Measurements(8, 8 * [10**6], False, computations, 0.3, methods, links, 1)
    monkeypatch.setattr(planning, "measure", lambda *_: measured)
    model = planned.make_model()
    model.compile(make_optimizer(), loss="mse")
    made = make_plan(lambda: model, Alone(), None, None, planned_for(workers=[2], members=[]))
    one_after_another = 0.3 + 8 * 0.032
    for prediction in made.predictions:
        # There are flags of two workers. Each sends its own.
        assert prediction.sent_bytes == 8 * 4e6 + (0 if overlaps else 4)
        assert (prediction.step_seconds < 0.8 * one_after_another) == overlaps
        assert (prediction.step_seconds == pytest.approx(one_after_another)) == (not overlaps)


@pytest.mark.parametrize(
    "settings, bucket_bytes, exchange",
    [
        ({"template": FullPrecision()}, None, FullPrecision()),
        (
            {"template": OneBit(max_column_size=64)},
            4 * 2**20,
            WarmStart(OneBit(max_column_size=64, bucket_bytes=4 * 2**20), steps=1000),
        ),
        ({"template": OneBit(), "delay": 1}, None, WarmStart(Delayed(OneBit()), steps=1000)),
        ({"template": Threshold(tau=0.5), "delay": 1}, None, Delayed(Threshold(tau=0.5))),
        ({"template": OneBit(min_size=9), "sync_period": 8}, 4 * 2**20, Local()),
        (
            {
                "template": OneBit(min_size=9),
                "sync_period": 8,
                "fragments": (0.4, 0.6),
                "overlap": 3,
            },
            None,
            Local(),
        ),
    ],
)
def test_the_lines_to_write_make_what_is_advised(settings, bucket_bytes, exchange):
    method = Method("method", [], **settings)
    names = {"tf_onebit": tf_onebit, "hvd": hvd, "optimizer": keras.optimizers.SGD(0.1)}
    hvd.init()
    for line in lines_for(method, bucket_bytes):
        if "MultiWorker" not in line:
            exec(line, names)
    assert names["exchange"].get_config() == exchange.get_config()
    assert type(names["exchange"]) is type(exchange)
    assert type(names["optimizer"]).__name__ == "SGD"
    assert ("callbacks" in names) == ("sync_period" in settings)
    if "callbacks" in names:
        (callback,) = names["callbacks"]
        assert (callback.sync_period, callback.exchange.min_size) == (8, 9)
        assert callback.fragments == len(settings.get("fragments", [1]))
        assert callback.overlap == settings.get("overlap", 0)


def computation(seconds):
    return Computation(seconds / 2, seconds / 2)


def test_times_that_scatter_or_fall_are_told():
    rising = {32: computation(0.1), 64: computation(0.2)}
    assert doubts_about(rising, {32: 0.1, 64: 0.1}, {}) == []
    (doubt,) = doubts_about(rising, {32: 0.1, 64: 0.5}, {})
    assert doubt.startswith("These times are not reliable: times with 64 samples differ by 50 %.")
    (doubt,) = doubts_about({32: computation(0.2), 64: computation(0.1)}, {32: 0.1, 64: 0.1}, {})
    assert "64 samples take 100 ms, less than the 200 ms of 32 samples" in doubt
    members = {2: types.SimpleNamespace(scatter=0.1), 4: types.SimpleNamespace(scatter=0.3)}
    (doubt,) = doubts_about(rising, {32: 0.1, 64: 0.1}, members)
    assert "not reliable: times of a member of 4 differ by 30 %. Another" in doubt


def test_a_model_that_is_not_there_is_told_before_tensorflow_is_imported():
    program = """
import sys
from tf_onebit import _cli as cli
status = cli.main(["plan", sys.argv[1]])
print(status, "tensorflow" in sys.modules)
"""
    for source, message in [
        ("nowhere.keras", "There is no such file. Received: 'nowhere.keras'"),
        ("nowhere:make", "There is no module 'nowhere' in"),
    ]:
        _, output, errors = run_python(program, source)
        assert output == "1 False\n"
        assert message in errors


def test_only_what_is_measured_is_on_standard_error():
    program = "import sys; from tf_onebit import _cli as cli; sys.exit(cli.main(sys.argv[1:]))"
    arguments = ["plan", MODEL, "--workers", "2", "--per-replica-batch-size", "4"]
    status, output, errors = run_python(program, *arguments, in_fork=True)
    assert status == 0, errors
    stages = ["a step of 2", "a step of 4", "a step of 8 samples", "the exchange between 2"]
    for stage, line in zip(stages, errors.splitlines(), strict=True):
        assert line.startswith(f"Measuring {stage}"), errors


# One worker may be measured again while it has memory.
WITHOUT_MEMORY = """
import sys
from tests.support import planned
from tf_onebit import _cli as cli
from tf_onebit._preflight.computation import ModelInStep
step = ModelInStep(planned.make_model())
assert step.measure_alone(64) > 0
assert step.measure_alone(2 * 10**14) is None
sys.exit(cli.main(sys.argv[1:]))
"""


def test_says_when_there_is_no_memory_for_a_step():
    arguments = ["plan", MODEL, "--per-replica-batch-size", 2 * 10**14]
    # TensorFlow's own allocator would wait for memory for ten seconds.
    status, output, errors = run_python(
        WITHOUT_MEMORY, *arguments, in_fork=True, TF_ONEDNN_USE_SYSTEM_ALLOCATOR="1"
    )
    assert (status, output) == (1, ""), errors
    assert "worker has too little memory for a step. Received: 200000000000000" in errors


def test_blocks_in_full_precision_change_less_than_those_with_one_bit(capsys, tmp_path):
    path = tmp_path / "plan.json"
    assert plan(capsys, MODEL, "--workers", 2, "--json", path)[0] == 0
    names = [p["method"] for p in json.loads(path.read_text())["predictions"]]
    assert names.index("blocks of 16, full precision") < names.index("blocks of 16, 1-bit")


@pytest.mark.parametrize("local_rank, name", [(0, "GPU:0"), (3, "GPU:1"), (4, "GPU:0")])
def test_processes_of_horovod_have_a_gpu_each(monkeypatch, local_rank, name):
    visible = []
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: ["GPU:0", "GPU:1"])
    monkeypatch.setattr(tf.config, "set_visible_devices", lambda *given: visible.append(given))
    jobs.take_a_gpu(local_rank)
    assert visible == [(name, "GPU")]


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--workers", "1"], "at least 2: '1'"),
        (["--workers", "0"], "at least 2: '0'"),
        (["--workers", "2", "1000000"], "at most 1024: '1000000'"),
        (["--bandwidth", "0gbit"], "a rate above 0 in kbit, mbit or gbit, such as 1gbit: '0gbit'"),
        (["--bandwidth", "fast"], "such as 1gbit: 'fast'"),
        (["--latency", "-1"], "a time in ms, at least 0: '-1'"),
        (["--latency", "inf"], "a time in ms, at least 0: 'inf'"),
        (["--target-density", "2"], "a fraction of all values, such as 0.001: '2'"),
        (["--per-replica-batch-size", "0"], "at least 1: '0'"),
        (["--members", "1"], "at least 2: '1'"),
    ],
)
def test_refuses_arguments(capsys, arguments, message):
    with pytest.raises(SystemExit) as exit:
        cli.main(["plan", MODEL, *arguments])
    assert exit.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("rank", ["HOROVOD_RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK"])
def test_says_when_horovod_is_missing(capsys, monkeypatch, rank):
    monkeypatch.setenv(rank, "0")
    monkeypatch.setitem(sys.modules, "tf_onebit.horovod", None)
    status, _, errors = plan(capsys, MODEL)
    assert status == 1
    assert "started by horovodrun or MPI, and Horovod cannot be used" in errors
