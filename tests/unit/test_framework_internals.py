"""The installed Keras and TensorFlow have the private parts that the package relies on.

If a test fails after an upgrade, its function in `tf_onebit/_framework_internals` names the line of
Keras or TensorFlow to look at.
"""

import contextlib
import functools
import importlib
import inspect
import pkgutil
import sys
import types

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras.src.backend.tensorflow import trainer
from keras.src.trainers import data_adapters

import tf_onebit
from tf_onebit._framework_internals import (
    hooks,
    keras_calls,
    keras_data,
    keras_models,
    keras_optimizers,
    keras_random,
    keras_variables,
    tf_datasets,
    tf_functions,
    tf_strategies,
    tf_variables,
)
from tf_onebit._framework_internals.class_changes import become, overlay
from tf_onebit._training.local_updates import LocalUpdates
from tf_onebit._training.optimizer import Distributed, GlobalLossScale
from tf_onebit._training.passes import _Followed
from tf_onebit._training.scaled_learning_rate import ScaledLearningRate
from tf_onebit._training.update_exchange import ExchangesUpdates
from tf_onebit.distribute.optimizer import (
    _LossScaleUnderStrategy,
    _UnderStrategy,
    _UpdatesUnderStrategy,
)
from tf_onebit.horovod.asynchronous import _Asynchronous
from tf_onebit.horovod.optimizer import _OverHorovod, _ScaledOverHorovod, _UpdatesOverHorovod
from tf_onebit.optimizers.moments import _MomentSteps

X, Y = np.ones([8, 2], np.float32), np.ones([8, 1], np.float32)
# The classes that mixins, which do not say so themselves, are put in front of.
MIXED_INTO = {
    keras.optimizers.SGD: (
        Distributed,
        ExchangesUpdates,
        LocalUpdates,
        _UnderStrategy,
        _UpdatesUnderStrategy,
        _OverHorovod,
        _UpdatesOverHorovod,
        ScaledLearningRate,
        _Asynchronous,
    ),
    keras.optimizers.LossScaleOptimizer: (
        GlobalLossScale,
        _LossScaleUnderStrategy,
        _ScaledOverHorovod,
    ),
    keras.optimizers.Adam: (_MomentSteps,),
    trainer.TFEpochIterator: (_Followed,),
}
FRAMEWORKS = ("keras", "tensorflow")


def is_private(name):
    return name.startswith("_") and not name.startswith("__")


def listed(table, classes):
    """Returns the names that a table has for any of a class's bases."""
    return {name for cls, names in table.items() if cls in classes for name in names}


def compiled_model(optimizer="sgd", **arguments):
    model = keras.Sequential([keras.Input([2]), keras.layers.Dense(1)])
    model.compile(optimizer, loss="mse", **arguments)
    return model


class Calls(keras.callbacks.Callback):
    """A callback that calls a function of its model at a moment of `fit`, and keeps the results."""

    def __init__(self, moment, function):
        super().__init__()
        self.results = []
        setattr(self, moment, lambda *_, **__: self.results.append(function(self.model)))


def in_package(source, **names):
    """Makes a function of the package. Its caller is looked for outside of the package."""
    return eval(source, {"__name__": "tf_onebit.test", **names})


class Strategy(tf.distribute.MirroredStrategy):
    """A strategy that calls functions where Keras asks it for something, and keeps the results."""

    def __init__(self, **functions):
        super().__init__(["CPU:0"])
        self.functions = functions
        self.results = []

    def _call(self, name):
        if name in self.functions:
            self.results.append(self.functions[name]())

    def scope(self):
        self._call("scope")
        return super().scope()

    def experimental_distribute_dataset(self, dataset, options=None):
        self._call("distribute")
        return super().experimental_distribute_dataset(dataset, options)


class ReducingStrategy(Strategy):
    """A strategy that calls its function, as one of the package, when Keras reduces values."""

    reduce = in_package(
        "lambda self, *args, **kwargs: self.results.append(self.functions['reduce']())"
        " or base.reduce(self, *args, **kwargs)",
        base=tf.distribute.MirroredStrategy,
    )


# Hooks.


def test_methods_that_classes_override_are_there_with_the_same_parameters():
    wrong = {}
    for cls, methods in hooks.METHODS.items():
        for name, parameters in methods.items():
            method = inspect.getattr_static(cls, name, None)
            method = getattr(method, "fget", method)
            found = method and ", ".join(inspect.signature(method).parameters)
            if found != parameters:
                wrong[f"{cls.__name__}.{name}"] = found
    assert wrong == {}


@pytest.mark.parametrize(
    ("cls", "arguments"),
    [
        (keras.optimizers.SGD, {"gradient_accumulation_steps": 2}),
        (keras.optimizers.Adam, {"amsgrad": True, "gradient_accumulation_steps": 2}),
        (keras.optimizers.Nadam, {"gradient_accumulation_steps": 2}),
    ],
)
def test_attributes_that_classes_use_are_in_optimizers(cls, arguments):
    optimizer = cls(**arguments)
    optimizer.build([keras.Variable([1.0])])
    expected = listed(hooks.ATTRIBUTES, cls.__mro__)
    assert {name for name in expected if not hasattr(optimizer, name)} == set()


def test_attributes_that_classes_use_are_in_the_source_of_tensorflow():
    missing = []
    for cls, names in hooks.ATTRIBUTES.items():
        if cls.__module__.startswith("tensorflow"):
            source = inspect.getsource(sys.modules[cls.__module__])
            missing += [f"{cls.__name__}.{name}" for name in names if name not in source]
    assert missing == []


def package_classes():
    for module in pkgutil.walk_packages(tf_onebit.__path__, "tf_onebit."):
        if module.name.startswith("tf_onebit.lib"):  # of operations
            continue
        for cls in vars(importlib.import_module(module.name)).values():
            if inspect.isclass(cls) and cls.__module__ == module.name:
                yield cls


def private_names(cls):
    """Returns the private names that a class defines, and those that its methods read."""
    names = set(filter(is_private, vars(cls)))
    functions = [getattr(value, "fget", value) for value in vars(cls).values()]
    functions = [getattr(function, "func", function) for function in functions]
    codes = [inspect.unwrap(f).__code__ for f in functions if isinstance(f, types.FunctionType)]
    while codes:
        code = codes.pop()
        names |= set(filter(is_private, code.co_names))
        codes += [constant for constant in code.co_consts if isinstance(constant, types.CodeType)]
    return names


def test_all_private_names_that_classes_override_are_listed():
    not_listed = {}
    for cls in package_classes():
        into = [base for base, mixins in MIXED_INTO.items() if cls in mixins]
        bases = [*cls.__mro__, *(b for base in into for b in base.__mro__)]
        inherited = {
            name
            for base in bases
            if base.__module__.startswith(FRAMEWORKS)
            for name in filter(is_private, vars(base))
        }
        known = listed(hooks.METHODS, bases) | listed(hooks.ATTRIBUTES, bases) | {"_abc_impl"}
        if rest := (private_names(cls) & inherited) - known:
            not_listed[f"{cls.__module__}.{cls.__name__}"] = rest
    assert not_listed == {}


# Changes of class.


def test_an_object_becomes_one_of_another_class_and_keeps_what_is_in_it():
    class One:
        pass

    class Other:
        pass

    thing = One()
    thing.content = 1
    become(thing, Other)
    assert isinstance(thing, Other) and thing.content == 1


def test_an_object_whose_memory_is_laid_out_otherwise_does_not_become_another():
    class One:
        pass

    class Slotted:
        __slots__ = ("content",)

    with pytest.raises(TypeError):
        become(One(), Slotted)


def test_an_overlay_comes_before_the_class_and_has_its_name():
    class Mixin:
        def one(self):
            return ["mixin", *super().one()]

    class One:
        def one(self):
            return ["one"]

    thing = One()
    overlay(thing, Mixin, two=2)
    assert thing.one() == ["mixin", "one"]
    assert thing.two == 2
    assert type(thing).__name__ == "One" and isinstance(thing, One)


# Calls.


def test_a_fit_that_calls_tells_what_it_was_given():
    model = compiled_model()
    callback = Calls("on_epoch_begin", keras_calls.find_fit)
    model.fit(X, Y, batch_size=4, epochs=3, initial_epoch=2, callbacks=[callback], verbose=0)
    (call,) = callback.results
    assert call.model is model
    assert call.data is X
    assert callback in call.callbacks
    assert (call.first_epoch, call.last_epoch) == (2, 3)
    assert (call.number_of_batches, call.batch_size) == (2, 4)
    assert [tuple(spec.shape) for spec in call.batch_spec] == [(4, 2), (4, 1)]


def test_a_fit_that_calls_is_running_until_it_returns():
    model = compiled_model()
    call = None

    def look(model):
        nonlocal call
        call = keras_calls.find_fit(model)
        return call.is_running()

    callback = Calls("on_train_begin", look)
    model.fit(X, Y, callbacks=[callback], verbose=0)
    assert callback.results == [True]
    assert not call.is_running()


def test_nobody_calls_where_there_is_no_fit_of_keras():
    class Own(keras.Model):
        def fit(self):
            return keras_calls.find_fit(self)

    assert keras_calls.find_fit(compiled_model()) is None
    assert Own().fit() is None


def test_only_the_fit_of_a_model_is_found():
    other = compiled_model()
    callback = Calls("on_train_begin", lambda model: keras_calls.find_fit(other))
    compiled_model().fit(X, Y, callbacks=[callback], verbose=0)
    assert callback.results == [None]


def test_the_batch_size_of_a_distributed_dataset_is_not_known():
    strategy = tf.distribute.MirroredStrategy(["CPU:0"])
    with strategy.scope():
        model = compiled_model()
    data = tf.data.Dataset.from_tensor_slices((X, Y)).batch(4, drop_remainder=True)
    callback = Calls("on_train_begin", lambda model: keras_calls.find_fit(model).batch_size)
    data = strategy.experimental_distribute_dataset(data)
    model.fit(data, callbacks=[callback], verbose=0)
    assert callback.results == [None]


def test_logs_that_are_set_are_those_of_an_epoch_without_steps():
    def set_logs(model):
        call = keras_calls.find_fit(model)
        overlay(call.epoch_iterator, __iter__=lambda self: iter(()))
        call.set_logs({"given": 7.0})

    callback = Calls("on_epoch_begin", set_logs)
    history = compiled_model().fit(X, Y, callbacks=[callback], verbose=0).history
    assert history == {"given": [7.0]}


def test_an_optimizer_finds_the_model_in_whose_step_it_is():
    found = []

    class Looking(keras.optimizers.SGD):
        def apply(self, grads, trainable_variables=None):
            found.append(keras_calls.model_in_train_step(lambda owner: owner is model))
            super().apply(grads, trainable_variables)

    model = compiled_model(Looking())
    model.optimizer.apply([tf.zeros([2, 1]), tf.zeros([1])], model.trainable_variables)
    model.fit(X, Y, verbose=0)
    assert found == [None, model]


def test_a_strategy_finds_the_model_that_is_built_in_its_scope():
    strategy = Strategy(scope=keras_calls.model_being_built)
    with strategy.scope():
        model = compiled_model()
    assert strategy.results == [(None, None)]
    strategy.results.clear()
    model.fit(X, Y, verbose=0)
    (found, call), *_ = [result for result in strategy.results if result[0] is not None]
    assert found is model and call.model is model and call.data is X
    strategy.results.clear()
    model.evaluate(X, Y, verbose=0)
    assert (model, None) in strategy.results


def test_a_strategy_finds_the_epoch_iterator_whose_data_it_distributes():
    strategy = Strategy(distribute=keras_calls.epoch_iterator_being_made)
    with strategy.scope():
        model = compiled_model()
    model.fit(X, Y, batch_size=4, verbose=0)
    (found,) = strategy.results
    assert found.data_adapter.num_batches == 2
    data = tf.data.Dataset.from_tensors(X)
    strategy.experimental_distribute_dataset(data)
    assert strategy.results[-1] is None


def test_a_strategy_knows_when_keras_wants_shapes_only(monkeypatch):
    strategy = ReducingStrategy(reduce=keras_calls.is_asked_for_shapes)
    with strategy.scope():
        model = compiled_model()
    monkeypatch.setattr(tf.distribute, "DistributedValues", tf.Tensor)  # like several devices
    batch = tf.constant(X), tf.constant(Y)
    model._maybe_symbolic_build(iterator=[(0, 0, iter([batch]))])
    assert strategy.results == [True]
    strategy.reduce("SUM", tf.ones([]), axis=None)
    assert strategy.results == [True, False]


def test_a_strategy_knows_when_keras_reduces_metrics(monkeypatch):
    strategy = ReducingStrategy(reduce=keras_calls.is_asked_for_metrics)
    monkeypatch.setattr(trainer, "_collective_all_reduce_multi_worker", lambda strategy: True)
    trainer.reduce_per_replica({"loss": tf.ones([1])}, strategy, "mean")
    strategy.reduce("SUM", tf.ones([]), axis=None)
    assert strategy.results == [True, False]


class Adapter(data_adapters.data_adapter.DataAdapter):
    """A data adapter that asks who asks for its data, like an adapter of the package."""

    num_batches = batch_size = has_partial_batch = partial_batch_size = None

    def __init__(self):
        self.requests = []

    get_tf_dataset = in_package(
        "lambda self: self.requests.append(data_request()) or self.dataset()",
        data_request=keras_calls.data_request,
    )

    def dataset(self):
        return tf.data.Dataset.from_tensor_slices((X, Y)).batch(4)


def test_data_find_the_fit_that_asks_for_them():
    model, data = compiled_model(), Adapter()
    model.fit(data, verbose=0)
    (request,) = data.requests
    assert request.caller == "model.fit"
    assert request.model is model
    assert request.epoch_iterator.data_adapter is data
    assert request.strategy is tf.distribute.get_strategy()
    names = {"y", "sample_weight", "class_weight", "batch_size", "steps_per_epoch", "shuffle"}
    assert names | {"x", "steps_per_execution"} == set(request.arguments)


def test_data_know_who_else_asks_for_them():
    model, data = compiled_model(), Adapter()
    model.evaluate(data, verbose=0)
    model.fit(X, Y, validation_data=data, verbose=0)
    data.get_tf_dataset()
    callers = [(request.caller, request.model) for request in data.requests]
    assert callers == [
        ("model.evaluate", None),
        ("model.fit as validation_data", None),
        ("test_data_know_who_else_asks_for_them", None),
    ]


# Models.


def nested_model():
    inner = keras.Sequential([keras.Input([2]), keras.layers.BatchNormalization()], name="inner")
    inner.trainable = False
    return keras.Sequential([keras.Input([2]), inner, keras.layers.Dense(1, name="dense")])


def test_layers_of_a_model_are_found_at_all_depths():
    model = nested_model()
    layers = {layer.name: layer for layer in keras_models.layers_of(model)}
    assert {model.name, "inner", "dense"} < set(layers)
    assert [layer for layer in layers.values() if isinstance(layer, keras.layers.Dense)]
    assert keras_models.has_layers(layers["inner"])
    assert not keras_models.has_layers(layers["dense"])


def test_statistics_are_without_the_weights_of_frozen_layers():
    names = [variable.name for variable in keras_models.statistics_of(nested_model())]
    assert sorted(name for name in names if "seed" not in name) == [
        "moving_mean",
        "moving_variance",
    ]


def test_a_model_tells_its_strategy_only_if_it_has_one():
    strategy = tf.distribute.MirroredStrategy(["CPU:0"])
    with strategy.scope():
        assert keras_models.strategy_of(compiled_model()) is strategy
    assert keras_models.strategy_of(compiled_model()) is None


def test_inputs_have_the_structure_that_a_model_is_called_with():
    inputs = {"one": keras.Input([2], name="one"), "two": keras.Input([3], name="two")}
    model = keras.Model(inputs, keras.layers.Concatenate()(list(inputs.values())))
    found = keras_models.inputs_of(model)
    assert {name: found[name].shape for name in found} == {"one": (None, 2), "two": (None, 3)}


def test_a_model_is_built_from_the_shapes_of_a_batch():
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile("sgd", loss="mse", metrics=["mae"])
    batch = tf.TensorSpec([None, 2]), tf.TensorSpec([None, 1])
    keras_models.build_from(model, batch)
    assert [tuple(weight.shape) for weight in model.weights] == [(2, 1), (1,)]
    assert model.optimizer.built
    assert "mean_absolute_error" in str([v.path for v in model.metrics_variables])


def test_the_next_build_of_a_model_is_replaced_once():
    with tf.distribute.MirroredStrategy(["CPU:0"]).scope():
        model = keras.Sequential([keras.layers.Dense(1)])
        model.compile("sgd", loss="mse")
    built_before = []

    def build(keras_build):
        built_before.append(model.built)
        keras_build()
        built_before.append(model.built)

    for _ in range(2):
        keras_models.replace_next_build(model, build)
    model.fit(X, Y, verbose=0)
    model.fit(X, Y, verbose=0)
    assert built_before == [False, True]


def test_training_begins_with_the_epoch_that_is_set():
    model = compiled_model()

    def set_it(model):
        keras_models.set_first_epoch(model, 2)

    history = model.fit(X, Y, epochs=4, callbacks=[Calls("on_train_begin", set_it)], verbose=0)
    assert history.epoch == [2, 3]
    keras_models.set_first_epoch(model, None)
    assert model.fit(X, Y, epochs=2, initial_epoch=1, verbose=0).epoch == [1]


def test_logs_of_an_epoch_are_the_metrics_or_what_a_step_returned():
    model = compiled_model()
    model.fit(X, Y, verbose=0)
    loss = float(model.get_metrics_result()["loss"])
    assert float(keras_models.logs_of_epoch(model, {"loss": -1.0})["loss"]) == loss
    assert keras_models.logs_of_epoch(model, {"own": -1.0}) == {"own": -1.0}


def test_wrapped_methods_run_in_their_context_until_they_are_unwrapped():
    model = compiled_model()
    events = []

    @contextlib.contextmanager
    def context():
        events.append("begin")
        yield
        events.append("end")

    keras_models.wrap_methods(model, context)
    weights = model.get_weights()
    assert events == ["begin", "end"]
    keras_models.unwrap_methods(model)
    np.testing.assert_array_equal(model.get_weights()[0], weights[0])
    assert events == ["begin", "end"]


def test_models_have_all_methods_that_show_them():
    methods = (*keras_models.SHOWING, keras_models.END_OF_EPOCH, keras_models.BEFORE_VALIDATION)
    assert [name for name in methods if not callable(getattr(keras.Model, name, None))] == []


def test_the_end_of_an_epoch_is_told_before_keras_validates():
    model, events = compiled_model(), []

    @contextlib.contextmanager
    def noting(name):
        events.append(name)
        yield

    names = [keras_models.END_OF_EPOCH, keras_models.BEFORE_VALIDATION]
    for name in names:
        keras_models.wrap_methods(model, functools.partial(noting, name), [name])
    steps = Calls("on_train_batch_end", lambda model: events.append("step"))
    tests = Calls("on_test_begin", lambda model: events.append("validation"))
    model.fit(X, Y, batch_size=8, validation_data=(X, Y), callbacks=[steps, tests], verbose=0)
    assert events[:4] == ["step", *names, "validation"]
    assert events.count(keras_models.BEFORE_VALIDATION) == 1  # and not in `evaluate`


# Optimizers.


def built(optimizer):
    optimizer.build([keras.Variable(np.ones([2, 3], np.float32), name="weight")])
    return optimizer


def test_batches_are_counted_also_where_gradients_accumulate():
    weight = keras.Variable([1.0])
    optimizer = keras.optimizers.SGD(gradient_accumulation_steps=2)
    for _ in range(3):
        optimizer.apply([tf.constant([1.0])], [weight])
    assert int(keras_optimizers.batch_counter_of(optimizer)) == 3
    assert int(optimizer.iterations) == 1
    assert keras_optimizers.trained_variables_of(optimizer) == [weight]
    (accumulated,) = keras_optimizers.accumulated_gradients_of(optimizer)
    assert accumulated.numpy().tolist() == [1.0]
    assert keras_optimizers.accumulated_gradients_of(built(keras.optimizers.SGD())) == []


def test_a_learning_rate_is_a_variable_or_a_schedule():
    schedule = keras.optimizers.schedules.ExponentialDecay(0.1, 10, 0.9)
    setting_of = keras_optimizers.learning_rate_setting_of
    assert setting_of(keras.optimizers.SGD(schedule)) is schedule
    assert isinstance(setting_of(keras.optimizers.SGD(0.1)), keras.Variable)


@pytest.mark.parametrize(
    ("optimizer", "count"),
    [
        (keras.optimizers.SGD(momentum=0.9), 1),
        (keras.optimizers.RMSprop(momentum=0.9), 1),
        (keras.optimizers.SGD(), 0),
        (keras.optimizers.Adam(), 0),
    ],
    ids=["sgd", "rmsprop", "without", "adam"],
)
def test_velocities_are_of_optimizers_with_a_momentum(optimizer, count):
    assert len(keras_optimizers.velocities_of(built(optimizer))) == count


@pytest.mark.parametrize("cls", keras_optimizers.MOMENTS, ids=lambda cls: cls.__name__)
def test_optimizers_have_the_moments_that_are_listed(cls):
    every = {"momentum": 0.9, "centered": True}
    known = inspect.signature(cls).parameters
    optimizer = built(cls(**{name: value for name, value in every.items() if name in known}))
    moments = [v for name in keras_optimizers.MOMENTS[cls] for v in getattr(optimizer, name)]
    shapes = [tuple(moment.shape) for moment in moments]
    assert shapes == [(2, 3)] * len(keras_optimizers.MOMENTS[cls])
    others = [variable for variable in optimizer.variables if tuple(variable.shape) == (2, 3)]
    assert len(others) == len(moments)


def test_amsgrad_keeps_the_maxima_that_are_listed():
    optimizer = built(keras.optimizers.Adam(amsgrad=True))
    (name,) = keras_optimizers.AMSGRAD_MOMENTS
    assert [tuple(variable.shape) for variable in getattr(optimizer, name)] == [(2, 3)]


def test_whoever_makes_a_variable_finds_the_optimizer_that_it_is_for():
    found = []

    def creator(next_creator, **arguments):
        found.append(keras_optimizers.calling_optimizer())
        return next_creator(**arguments)

    with tf.variable_creator_scope(creator):
        keras.Variable([1.0])
        optimizer = keras.optimizers.SGD(0.1)
    assert found[0] is None
    assert len(found) > 1 and all(one is optimizer for one in found[1:])


@keras.saving.register_keras_serializable(package="tests")
class Registered(keras.optimizers.SGD):
    pass


@pytest.mark.parametrize("cls", [keras.optimizers.SGD, Registered])
def test_an_optimizer_that_is_mixed_into_is_saved_as_what_it_was(cls):
    class Mixin:
        is_mixed_in = True

    optimizer = cls(0.25)
    keras_optimizers.mix_in(optimizer, Mixin)
    assert optimizer.is_mixed_in and isinstance(optimizer, cls)
    assert keras_optimizers.original_class(optimizer) is cls
    loaded = keras.optimizers.deserialize(keras.optimizers.serialize(optimizer))
    assert type(loaded) is cls
    assert float(loaded.learning_rate) == 0.25


def test_optimizers_of_the_same_state_have_the_same_variables():
    weight = keras.Variable([1.0])
    optimizer = keras.optimizers.Adam(0.25)
    optimizer.build([weight])
    other = keras_optimizers.with_same_state(optimizer)
    assert type(other) is type(optimizer) and other is not optimizer
    other.apply([tf.constant([2.0])])
    assert int(optimizer.iterations) == 1 and float(weight[0]) == pytest.approx(0.75, rel=1e-5)
    own, others = (keras_optimizers.moments_for(one, weight) for one in (optimizer, other))
    assert all(one is another for one, another in zip(own, others, strict=True))


# Data.


def epoch_iterator(data, **arguments):
    return keras_data.TFEpochIterator(
        x=data, distribute_strategy=tf.distribute.get_strategy(), **arguments
    )


class Batches(keras.utils.PyDataset):
    def __len__(self):
        return 5

    def __getitem__(self, index):
        return np.full([4, 2], index, np.float32), np.zeros([4, 1], np.float32)


def test_an_epoch_iterator_draws_from_the_distributed_dataset():
    batches = keras_data.distributed_data_of(epoch_iterator(X, batch_size=4))
    assert [tuple(batch.shape) for batch in batches] == [(4, 2), (4, 2)]


def test_an_epoch_has_the_number_of_batches_that_is_set():
    iterator = epoch_iterator(X, batch_size=2)
    keras_data.set_number_of_batches(iterator, 3)
    iterator.reset()
    assert iterator.num_batches == 3
    assert len(list(iterator)) == 3


@pytest.mark.parametrize(
    ("data", "repeats"),
    [
        (X, True),
        (tf.data.Dataset.from_tensors(X), True),
        (Batches(), True),
        ((batch for batch in [(X, Y)] * 4), False),
    ],
    ids=["arrays", "dataset", "py_dataset", "generator"],
)
def test_adapters_of_generators_do_not_repeat(data, repeats):
    adapter = epoch_iterator(data).data_adapter
    assert keras_data.is_known_to_repeat(adapter) == repeats


def test_the_shapes_of_a_py_dataset_are_known():
    spec = keras_data.spec_of_py_dataset(Batches())
    assert [(tuple(part.shape), part.dtype) for part in spec] == [
        ((None, 2), tf.float32),
        ((None, 1), tf.float32),
    ]


def test_a_batch_of_a_py_dataset_that_is_an_array_has_a_structure():
    class Arrays(Batches):
        def __getitem__(self, index):
            return X

    spec = keras_data.spec_of_py_dataset(Arrays())
    assert isinstance(spec, tuple) and [tuple(part.shape) for part in spec] == [(None, 2)]


@pytest.mark.parametrize("workers", [1, 2])
def test_batches_of_a_py_dataset_come_in_order_and_can_be_closed(workers):
    data = Batches(workers=workers)
    batches = keras_data.batches_of_py_dataset(data)
    assert [int(x[0, 0]) for x, _ in batches] == [0, 1, 2, 3, 4]
    batches = keras_data.batches_of_py_dataset(data)
    next(batches)
    batches.close()
    again = keras_data.batches_of_py_dataset(data)
    assert [int(x[0, 0]) for x, _ in again] == [0, 1, 2, 3, 4]


# Random numbers.


def test_the_global_generator_goes_on_from_its_state():
    keras.utils.set_random_seed(1)
    keras.random.normal([2])
    state = keras_random.global_generator_state()
    first = np.array(keras.random.normal([4]))
    keras_random.set_global_generator_state(state)
    np.testing.assert_array_equal(keras.random.normal([4]), first)


def test_a_default_seed_follows_the_seed_of_the_program():
    keras.utils.set_random_seed(1)
    first = keras_random.make_default_seed()
    keras.utils.set_random_seed(1)
    assert keras_random.make_default_seed() == first
    assert keras_random.make_default_seed() != first


# TensorFlow: variables, functions, datasets, strategies.


@pytest.mark.parametrize("make", [tf.Variable, keras.Variable], ids=["tensorflow", "keras"])
def test_a_mirrored_variable_has_a_copy_on_each_device(make):
    with tf.distribute.MirroredStrategy(["CPU:0"]).scope():
        mirrored = make(1.0)
    plain = make(1.0)
    for variable in (mirrored, plain):
        tf_variables.assign_all(variable, 3.0)
        (copy,) = tf_variables.copies_of(variable)
        assert not isinstance(copy, tf.distribute.DistributedValues)
        assert float(tf_variables.first_copy(variable)) == 3.0
    assert tf_variables.first_copy(2.5) == 2.5


def test_plain_variables_are_not_mirrored_and_no_function_takes_them():
    strategy, made, traces = tf.distribute.MirroredStrategy(["CPU:0"]), [], []

    @tf.function
    def function():
        traces.append(1)
        if not made:
            with tf.init_scope(), tf_variables.plain_variables("CPU:0"):
                made.append(tf.Variable(1.0))
        return made[0] + 1

    with strategy.scope():
        assert float(function()) == 2.0
    assert len(traces) == 1
    assert not isinstance(made[0], tf.distribute.DistributedValues)


def test_settings_of_a_function_are_told_and_kept():
    compiled = tf.function(lambda x: x, jit_compile=True)
    assert tf_functions.is_function(compiled) and tf_functions.is_compiled_by_xla(compiled)
    other = tf_functions.with_same_settings(compiled, lambda x: x + 1)
    assert tf_functions.is_compiled_by_xla(other)
    assert not tf_functions.is_compiled_by_xla(tf.function(lambda x: x))
    assert not tf_functions.is_function(lambda x: x)
    assert int(tf_functions.with_same_settings(tf.function(lambda x: x), lambda x: x + 1)(1)) == 2


def test_a_branch_belongs_to_the_function_that_is_traced():
    found = []

    @tf.function(autograph=False)
    def function(x):
        found.append(tf.compat.v1.get_default_graph())

        def branch():
            found.append(tf_functions.traced_function())
            return x

        return tf.cond(x > 0, branch, lambda: -x)

    function(tf.constant(1.0))
    assert found[0] is found[1]


def test_data_of_a_function_are_its_arguments_or_what_iterators_give():
    found, captured = [], tf.constant(2.0)

    def look(x):
        product = x * captured
        found.append((x, tf_functions.drawn_tensors()))
        return product

    tf.function(look, autograph=False)(tf.constant(1.0))
    tf.function(lambda data: look(next(data)), autograph=False)(
        iter(tf.data.Dataset.from_tensors(tf.constant(1.0)))
    )
    for x, (drawn, *others) in found:
        assert drawn is x and not others


def test_calls_are_numbered_in_each_function_anew():
    numbers, found = tf_functions.CallNumbers(), []

    def look(x):
        found.append([numbers.next(), numbers.next(), numbers.next("other")])
        return x

    for argument in (tf.constant(1.0), tf.constant(1)):
        tf.function(look, autograph=False)(argument)
    assert found == [[0, 1, 0]] * 2


def test_a_dataset_tells_its_sources_functions_and_seeds():
    source = tf.data.Dataset.range(8)
    shuffled = source.shuffle(4, seed=1, reshuffle_each_iteration=False)
    assert tf_datasets.sources_of(shuffled) == [source]
    assert tf_datasets.seeds_of(source) is None
    seeds = [int(tf.get_static_value(seed)) for seed in tf_datasets.seeds_of(shuffled)]
    assert seeds[1] == 1
    assert tf_datasets.seeds_of(tf.data.Dataset.random(seed=2)) is not None
    assert not tf_datasets.reshuffles(shuffled) and not tf_datasets.reshuffles(source)
    assert tf_datasets.reshuffles(source.shuffle(4, reshuffle_each_iteration=True))
    (graph,) = tf_datasets.graphs_of(source.map(lambda x: tf.random.uniform([])))
    assert "RandomUniform" in [operation.type for operation in graph.get_operations()]


def test_a_distributed_dataset_tells_what_it_was_made_of():
    strategy, source = tf.distribute.MirroredStrategy(["CPU:0"]), tf.data.Dataset.range(8)
    distributed = strategy.experimental_distribute_dataset(source)
    assert tf_datasets.local_datasets_of(distributed) == [source]
    distributed = strategy.distribute_datasets_from_function(lambda context: source)
    (local,) = tf_datasets.local_datasets_of(distributed)
    assert [int(value) for value in local] == list(range(8))


def test_iterators_of_a_distributed_dataset_have_the_cardinality_that_is_set():
    strategy = tf.distribute.MirroredStrategy(["CPU:0"])
    distributed = strategy.experimental_distribute_dataset(tf.data.Dataset.range(8))
    tf_datasets.set_cardinality(distributed, 5, is_infinite=False)
    iterator = iter(distributed)
    assert isinstance(iterator, tf_datasets.DistributedIterator)
    assert isinstance(iterator._type_spec, tf_datasets.DistributedIteratorSpec)
    assert (iterator._cardinality, iterator._enable_get_next_as_optional) == (5, True)


def test_a_process_knows_its_place_in_a_cluster():
    cluster = tf.train.ClusterSpec({"chief": ["a:1"], "worker": ["b:1", "c:1"]})
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        cluster, task_type="worker", task_id=1
    )
    assert tf_strategies.place_in_cluster(resolver) == (2, 3)


def test_values_of_replicas_are_put_together_and_apart():
    values = tf_strategies.regroup((tf.constant(1.0),), always_wrap=True)
    assert isinstance(values, tf.distribute.DistributedValues)
    assert float(tf_strategies.select_replica(0, values)) == 1.0
    with tf.distribute.MirroredStrategy(["CPU:0"]).scope():
        assert tf_strategies.is_mirrored(tf.Variable(1.0))
    assert not tf_strategies.is_mirrored(values)


def test_values_of_replicas_are_repeated_and_thinned_out():
    two = tf_strategies.regroup((tf.constant(1.0), tf.constant(2.0)))
    four, same, other = tf_strategies.each_replica_for((two, 3.0, (two,)), times=2, total=4)
    assert [float(value) for value in four.values] == [1.0, 1.0, 2.0, 2.0]
    assert same == 3.0 and len(other[0].values) == 4
    assert tf_strategies.each_replica_for(four, times=2, total=4).values == four.values
    thinned = tf_strategies.one_replica_of([four, 3.0], of=2)
    assert [float(value) for value in thinned[0].values] == [1.0, 2.0] and thinned[1] == 3.0
    assert float(tf_strategies.one_replica_of(two, of=2)) == 1.0


def test_a_replica_knows_its_number():
    strategy = tf.distribute.MirroredStrategy(["CPU:0"])
    assert tf_strategies.get_current_replica_id_as_int() == 0  # in no strategy
    numbers = []
    strategy.run(lambda: numbers.append(tf_strategies.get_current_replica_id_as_int()))
    assert numbers == [0]


def test_strategies_are_made_of_the_classes_that_ours_derive_from():
    extended = tf.distribute.MirroredStrategy(["CPU:0"]).extended
    assert type(extended) is tf_strategies.MirroredExtended
    assert issubclass(tf_strategies.CollectiveAllReduceExtended, tf_strategies.MirroredExtended)


def test_the_coordination_service_takes_what_it_is_given():
    context = tf_strategies.tf_context.Context
    configure = inspect.signature(context.configure_coordination_service).parameters
    given = {"service_type", "service_leader", "heartbeat_timeout_in_ms", "coordinated_jobs"}
    assert given <= set(configure)
    assert list(inspect.signature(context.set_config_key_value).parameters)[1:] == ["key", "value"]
    assert list(inspect.signature(context.get_config_key_value).parameters)[1:3] == [
        "key",
        "timeout_in_ms",
    ]
    assert list(inspect.signature(context.delete_config_key_value).parameters)[1:] == ["key"]
    assert not tf_strategies.has_coordination_service()


def test_a_variable_has_another_value_and_shape_but_is_the_same():
    layer = keras.layers.Dense(4)
    layer.build([None, 2])
    kernel, weights = layer.kernel, layer.weights
    before = keras_variables.replace_value(kernel, tf.ones([2, 2]))
    assert before.shape == (2, 4)
    assert layer.kernel is kernel and layer.weights[0] is kernel and len(weights) == 2
    assert tuple(kernel.shape) == (2, 2) and kernel.trainable
    with tf.GradientTape() as tape:
        y = tf.reduce_sum(kernel * 3.0)
    np.testing.assert_array_equal(tape.gradient(y, kernel.value), np.full([2, 2], 3.0))
    keras_variables.replace_value(kernel, before)
    assert kernel.value is before and tuple(kernel.shape) == (2, 4)


def test_a_layer_knows_that_it_is_called():
    class Asking(keras.layers.Layer):
        def call(self, x):
            self.is_in_call = keras_variables.is_in_call()
            return x

    layer = Asking()
    keras.Sequential([layer])(tf.ones([1, 1]))
    assert layer.is_in_call and not keras_variables.is_in_call()


def test_a_layer_knows_that_only_shapes_are_asked_for():
    class Asking(keras.layers.Layer):
        def call(self, x):
            self.is_symbolic = keras_variables.is_in_symbolic_call()
            return x

    layer = Asking()
    layer(keras.KerasTensor([1, 1]))
    assert layer.is_symbolic
    layer(tf.ones([1, 1]))
    assert not layer.is_symbolic


@pytest.mark.parametrize(
    ("optimizer", "count"),
    [
        (keras.optimizers.SGD(), 0),
        (keras.optimizers.Adam(amsgrad=True, use_ema=True, gradient_accumulation_steps=2), 5),
        (keras.optimizers.RMSprop(momentum=0.9), 2),
    ],
)
def test_optimizers_keep_variables_for_each_weight(optimizer, count):
    weights = [keras.Variable(np.ones(shape)) for shape in ([2], [3, 4])]
    optimizer.build(weights)
    slots = keras_optimizers.slots_of(optimizer)
    assert len(slots) == count * len(weights)
    assert {id(slot) for slot, _ in slots} <= set(map(id, optimizer.variables))
    assert all(slot.shape == weight.shape for slot, weight in slots)


def test_an_optimizer_knows_its_variables_after_their_values_are_replaced():
    weights = [keras.Variable(np.ones([4], np.float32)) for _ in range(2)]
    optimizer = keras.optimizers.SGD(1.0, weight_decay=0.5)
    optimizer.exclude_from_weight_decay(weights[:1])
    optimizer.build(weights)
    keys = keras_optimizers.keys_of(optimizer)
    for weight in weights:
        keras_variables.replace_value(weight, tf.ones([2]))
    keras_optimizers.replace_keys(optimizer, keys)
    optimizer.apply([tf.zeros([2])] * 2, weights)
    np.testing.assert_array_equal(weights[0], [1, 1])
    np.testing.assert_array_equal(weights[1], [0.5, 0.5])


def test_variables_of_inner_layers_are_not_a_layers_own():
    model = keras.Sequential([keras.Input((2,)), keras.layers.BatchNormalization()])
    assert keras_models.own_variables_of(model) == []
    assert len(keras_models.own_variables_of(model.layers[0])) == 4


def test_layers_that_use_an_output_are_found():
    inputs = keras.Input((2,))
    first, second, twice = (keras.layers.Dense(2) for _ in range(3))
    x = first(inputs)
    model = keras.Model(inputs, [second(x), twice(twice(x)), x])
    users = keras_models.users_of_outputs(model)
    assert users[id(first)] == [second, twice, None] and users[id(second)] == [None]
    assert id(twice) not in users
    sequential = keras.Sequential([keras.Input((2,)), first, second])
    users = keras_models.users_of_outputs(sequential)
    assert users[id(first)] == [second] and users[id(second)] == [None]
    assert keras_models.users_of_outputs(first) == {}
