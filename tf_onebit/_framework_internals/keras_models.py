"""Private parts of Keras models."""

import collections
import functools

import keras
from keras.src.models.functional import Functional

# The public methods that show a model, or its weights, to the user. Methods that assign weights
# count, too, because they must assign the weights that the others show.
SHOWING = (
    *("evaluate", "export", "get_weights", "predict", "save", "save_weights"),
    *("predict_on_batch", "test_on_batch", "load_weights", "set_weights"),
    *("get_state_tree", "set_state_tree"),
)
# The method that `fit` calls as soon as the last step of an epoch is over, before it validates
# (keras/src/backend/tensorflow/trainer.py:405; keras/src/trainers/trainer.py:1035).
END_OF_EPOCH = "_get_metrics_result_or_logs"
# The method that `fit` then calls if it has validation data, and only there
# (keras/src/backend/tensorflow/trainer.py:408; keras/src/trainers/trainer.py:1022).
BEFORE_VALIDATION = "_should_eval"


def layers_of(model):
    """Returns a model and all layers in it: list.

    Relies on `Layer._flatten_layers` (keras/src/layers/layer.py:1708).
    """
    return model._flatten_layers()


def has_layers(layer):
    """Tells whether a layer contains other layers.

    Relies on `Layer._layers` (keras/src/layers/layer.py:391).
    """
    return bool(layer._layers)


def users_of_outputs(model):
    """Finds the layers that use the output of each layer in the graph of a model.

    Relies on `Function._nodes_by_depth`, on `Node.arguments` and `operation`
    (keras/src/ops/function.py:81, node.py:43), on the history of Keras tensors, and on
    `Sequential._functional` (keras/src/models/sequential.py:74).

    Args:
        model: Keras model.

    Returns:
        Dictionary from the `id` of each layer to a list of layers, with None where the model
        returns an output. It has no layers that the model calls several times. It is empty for
        layers, and for models whose class defines what a call does.
    """
    if type(model) not in (Functional, keras.Sequential):
        return {}
    graph = model._functional if isinstance(model, keras.Sequential) else model
    of_depths = graph._nodes_by_depth.values() if graph is not None else ()
    nodes = [node for nodes in of_depths for node in nodes]
    calls = collections.Counter(id(node.operation) for node in nodes)
    users = {id(node.operation): [] for node in nodes if calls[id(node.operation)] == 1}
    uses = [(t, node.operation) for node in nodes for t in node.arguments.keras_tensors]
    for tensor, user in [*uses, *((tensor, None) for tensor in graph.outputs)] if nodes else ():
        made_by = id(tensor._keras_history.operation)
        if made_by in users:
            users[made_by].append(user)
    return users


def statistics_of(model):
    """Returns the variables that layers of a model keep but never train: list.

    The public `non_trainable_variables` also has all weights of frozen layers. Relies on
    `Layer._non_trainable_variables` (keras/src/layers/layer.py:390).
    """
    return [v for layer in layers_of(model) for v in layer._non_trainable_variables]


def own_variables_of(layer):
    """Returns the variables of a layer, without those of its inner layers: list.

    Relies on `Layer._trainable_variables` and `_non_trainable_variables`
    (keras/src/layers/layer.py:389).
    """
    return [*layer._trainable_variables, *layer._non_trainable_variables]


def strategy_of(model):
    """Returns the `tf.distribute.Strategy` in whose scope a model was made, or None.

    Relies on `TensorFlowTrainer._distribute_strategy`
    (keras/src/backend/tensorflow/trainer.py:37); the public `distribute_strategy` is never None.
    """
    return model._distribute_strategy


def inputs_of(model):
    """Returns the inputs with which a model is called: structure of Keras tensors.

    The model must not be a `Sequential`.

    Relies on `Function._inputs_struct` (keras/src/ops/function.py:58).
    """
    return getattr(model, "_inputs_struct", model.inputs)


def build_from(model, batch):
    """Makes the variables of a model and its metrics that Keras makes in the first step.

    Relies on `Trainer._symbolic_build` (keras/src/trainers/trainer.py:1125).

    Args:
        model: Keras model, compiled.
        batch: structure of tensors or of `tf.TensorSpec`.
    """
    model._symbolic_build(data_batch=batch)


def replace_next_build(model, function):
    """Replaces the next build of a model by a function. A second call replaces the first.

    Relies on `TensorFlowTrainer._maybe_symbolic_build`, which calls `self._symbolic_build`
    (keras/src/backend/tensorflow/trainer.py:740).

    Args:
        model: Keras model.
        function: called with Keras' own build, a function without arguments.
    """
    build = type(model)._symbolic_build.__get__(model)

    def build_next(*args, **kwargs):
        del model._symbolic_build
        function(functools.partial(build, *args, **kwargs))

    model._symbolic_build = build_next


def set_first_epoch(model, epoch):
    """Sets the first epoch of a model's next `fit`, or of the `fit` that is beginning.

    Relies on `Trainer._initial_epoch`, which overrides the argument unless it is None or 0
    (keras/src/trainers/trainer.py:28; keras/src/backend/tensorflow/trainer.py:392).

    Args:
        model: Keras model.
        epoch: number of the epoch, counted from 0, or None for the argument of `fit`.
    """
    model._initial_epoch = epoch


def logs_of_epoch(model, logs):
    """Returns Keras' logs of an epoch, given the logs of its last step.

    Relies on `Trainer._get_metrics_result_or_logs` (keras/src/trainers/trainer.py:1035).
    """
    return model._get_metrics_result_or_logs(logs)


def wrap_methods(model, context, names=SHOWING):
    """Makes methods of a model run in a context, until `unwrap_methods`.

    Relies on Keras calling them as `self.name(...)`.

    Args:
        model: Keras model.
        context: function that returns a context manager.
        names: names of the methods.
    """
    for name in names:
        method = getattr(type(model), name).__get__(model)
        setattr(model, name, _in_context(method, context))


def unwrap_methods(model, names=SHOWING):
    """Reverts `wrap_methods`."""
    for name in names:
        vars(model).pop(name, None)


def _in_context(method, context):
    @functools.wraps(method)
    def wrapped(*args, **kwargs):
        with context():
            return method(*args, **kwargs)

    return wrapped
