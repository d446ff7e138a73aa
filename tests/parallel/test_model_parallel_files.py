"""Model parallelism: files and backups of split models."""

import pathlib

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_onebit
import tf_onebit.horovod as hvd
from tests.support.groups import clipped_adam, fit_group, groups_of, trained
from tests.support.model_parallel import MODELS, compiled, data_of, difference, fit
from tests.support.nightly import nightly
from tests.support.ranks import from_first, gather
from tf_onebit import model_parallel
from tf_onebit.callbacks import BackupAndRestore


@pytest.mark.workers(2)
def test_a_file_is_that_of_a_plain_model_and_training_goes_on_from_it(world_size, tmp_path):
    path = f"{gather(str(tmp_path))[0]}/model.keras"
    model = trained("mlp", 2, clipped_adam, epochs=1)
    model.save(path)
    # Only the first process exports, and computes penalties for that.
    model.export(path.removesuffix(".keras"), verbose=False)

    def plain():
        loaded = keras.models.load_model(path)
        assert loaded.layers[0].__class__ is keras.layers.Dense
        exported = tf.saved_model.load(path.removesuffix(".keras"))
        x, _, _ = data_of("mlp")
        assert difference([exported.serve(x[:8])], [loaded(x[:8])]) < 1e-6
        before = loaded.get_weights(), [np.array(v) for v in loaded.optimizer.variables]
        fit(loaded, "mlp", epochs=1)
        return *before, loaded.get_weights()

    saved, slots, expected = from_first(plain)
    np.testing.assert_array_equal(difference(model.get_weights(), saved), 0)
    loaded = hvd.load_model(path)
    loaded = model_parallel.split(loaded, groups_of(2), min_size=0)
    fit_group(loaded, "mlp", epochs=1)
    assert difference(loaded.get_weights(), expected) < 1e-6
    model.load_weights(path)
    assert difference(model.get_weights(), saved) == 0
    merged = model_parallel.merge(model)
    assert merged is model and type(model) is keras.Sequential
    assert difference(merged.get_weights(), saved) == 0
    assert difference([v for v in merged.optimizer.variables], slots) == 0
    x, _, _ = data_of("mlp")
    assert difference([merged.predict(x[:8], verbose=0)], [merged(x[:8])]) < 1e-6


@pytest.mark.workers(2, *nightly(4))
def test_a_resumed_run_has_the_same_bits(world_size, tmp_path):
    directory = pathlib.Path(gather(str(tmp_path))[0])

    def run(name, epochs):
        optimizer = hvd.DistributedOptimizer(clipped_adam(), tf_onebit.OneBit(min_size=0))
        model = compiled(MODELS["mlp"](), optimizer)
        optimizer.build(model.trainable_variables)  # as in a model that is loaded
        model_parallel.split(model, groups_of(2), min_size=0)
        backup = BackupAndRestore(directory / name, delete_checkpoint=False)
        fit_group(model, "mlp", epochs=epochs, callbacks=[backup])
        return [np.array(v) for v in (*model.weights, *model.optimizer.variables)]

    run("interrupted", 1)
    assert difference(run("interrupted", 2), run("whole", 2)) == 0
