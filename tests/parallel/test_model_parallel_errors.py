"""Model parallelism: errors and warnings say what to do."""

import warnings

import keras
import pytest

import tf_onebit
import tf_onebit.horovod as hvd
from tests.support.groups import groups_of, split
from tests.support.model_parallel import MODELS, compiled, data_of
from tests.support.ranks import rank
from tf_onebit import model_parallel
from tf_onebit.callbacks import BlockMomentum


@pytest.mark.workers(2)
def test_a_warning_says_that_no_layer_could_be_split(world_size):
    def warnings_of(*sizes, members=2, **settings):
        layers = [keras.layers.Dense(size, name=f"of_{size}") for size in sizes]
        model = keras.Sequential([keras.Input((32,)), *layers])
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            model_parallel.split(model, groups_of(members), **settings)
        return [str(one.message) for one in caught]

    told = warnings_of(7, 5, min_size=0)
    assert len(told) == (rank() == 0)  # once per job
    for text in told:
        assert "Each of the 2 members of a group holds all of it, and all do the same work" in text
        assert "of_7: 2 members do not divide its 7 units; of_5: 2 members do not" in text
        assert "Choose numbers of units that the members divide, or a smaller min_size" in text
    told = warnings_of(8, 9, 10, 11)
    assert all("fewer than min_size=65536; and 1 more." in text for text in told)
    assert not warnings_of(7, 8, min_size=0)
    assert not warnings_of(7, 5, members=1, min_size=0)


@pytest.mark.workers(2)
def test_errors_say_what_to_do(world_size):
    groups = groups_of(2)
    for members in (0, 2.0, "host"):
        with pytest.raises(ValueError, match='members must be "node" or a positive whole number'):
            model_parallel.Groups(members)
    with pytest.raises(ValueError, match="Received: 2 workers, in groups of 2, 3"):
        model_parallel.Groups(3)
    with pytest.raises(ValueError, match="Call it on a batch first"):
        model_parallel.split(keras.Sequential([keras.layers.Dense(4)]), groups)
    with pytest.raises(ValueError, match=r"Pass for example Groups\(2\)"):
        model_parallel.split(MODELS["mlp"](), 2)
    with pytest.raises(ValueError, match="Use 0 to split every layer"):
        model_parallel.split(MODELS["mlp"](), groups, min_size=-1)
    with pytest.raises(ValueError, match="must be one that tf_onebit.model_parallel.split has"):
        model_parallel.merge(MODELS["mlp"]())
    with pytest.raises(ValueError, match=r"rank 0 has min_size = 0, rank 1 has min_size = 1"):
        model_parallel.split(MODELS["mlp"](), groups, min_size=rank())
    model = split("mlp")
    with pytest.raises(ValueError, match="is split already"):
        model_parallel.split(model, groups)
    x, y, size = data_of("mlp")
    for optimizer, message in {
        keras.optimizers.SGD(0.1): "Compile the model with .*DistributedOptimizer",
        hvd.DistributedOptimizer(keras.optimizers.Lamb()): "depend on the whole weight",
        hvd.DistributedOptimizer(keras.optimizers.SGD(), "auto"): "decides by times that differ",
        hvd.AsynchronousOptimizer(keras.optimizers.SGD()): "Compile the model with",
    }.items():
        with pytest.raises(ValueError, match=message):
            compiled(model, optimizer).train_on_batch(x[:size], y[:size])
    compiled(model, hvd.DistributedOptimizer(keras.optimizers.SGD(), tf_onebit.Local()))
    for blocks, message in {
        BlockMomentum(groups="node"): "Each group of a split model is one worker .*Leave groups",
        BlockMomentum(exchange="auto"): "Received: BlockMomentum with exchange=",
        BlockMomentum(): "rank 0 has number of batches in an epoch = 4, rank 1 has .* = 5",
    }.items():
        samples = size * (4 + rank())
        with pytest.raises(ValueError, match=message):
            model.fit(x[:samples], y[:samples], size, verbose=0, callbacks=[blocks])
