"""All that training goes on from: of the model, its optimizers, their exchanges, and chance."""

import json
import random

import keras
import numpy as np
import tensorflow as tf

from tf_onebit.exchanges.base import part_of


def optimizers_of(model):
    """The Keras optimizers of a model: that it was compiled with, and others that it holds."""
    held = [v for v in vars(model).values() if isinstance(v, keras.optimizers.Optimizer)]
    optimizers = {id(optimizer): optimizer for optimizer in (model.optimizer, *held)}
    return [optimizer for optimizer in optimizers.values() if optimizer is not None]


def variables_of(model):
    """Dictionary of the Keras variables of a model, its metrics and its optimizers.

    By their place: paths have numbers that depend on what else a program has made.
    """
    variables = {f"model/{i}/{v.name}": v for i, v in enumerate(model.variables)}
    variables |= {f"metrics/{i}/{v.name}": v for i, v in enumerate(model.metrics_variables)}
    for i, optimizer in enumerate(optimizers_of(model)):
        variables |= {f"optimizer_{i}/{j}": v for j, v in enumerate(optimizer.variables)}
    return variables


def gradient_exchanges_of(model):
    """List of the `GradientExchange` of a model's optimizers, without doubles."""
    found = [getattr(o, "gradient_exchange", None) for o in optimizers_of(model)]
    return list({id(exchange): exchange for exchange in found if exchange is not None}.values())


def collect(model):
    """The state of this process: dictionary of NumPy arrays.

    Of variables that have a copy on each device, every copy.
    """
    state = {
        f"{name}#{i}": copy.numpy()
        for name, variable in variables_of(model).items()
        for i, copy in enumerate(_copies(variable))
    }
    for i, exchange in enumerate(gradient_exchanges_of(model)):
        for j, states in enumerate(exchange.states()):
            for rank, one in zip(exchange.engine.ranks, states, strict=True):
                prefix = f"exchange_{i}/{j}/{rank}"
                state |= {f"{prefix}/{name}": array for name, array in one.items()}
    return state


def require_same_variables(model, state):
    """Raises ValueError unless a state is of a model with the same variables."""
    expected = {
        f"{name}#{i}": tuple(copy.shape)
        for name, variable in variables_of(model).items()
        for i, copy in enumerate(_copies(variable))
        if not name.startswith("metrics/")  # not all of them need exist yet
    }
    for name, shape in expected.items():
        if name not in state:
            raise ValueError(f"it has no variable {name}")
        if state[name].shape != shape:
            raise ValueError(f"its {name} has the shape {state[name].shape}, the model's {shape}")


def assign_variables(model, state):
    """Gives the model's variables, and those of metrics that exist, the saved values."""
    for name, variable in variables_of(model).items():
        for i, copy in enumerate(_copies(variable)):
            if f"{name}#{i}" in state:
                array = state[f"{name}#{i}"]
                if array.dtype.kind == "V":  # a type that NumPy does not know, like bfloat16
                    array = array.view(copy.dtype.as_numpy_dtype)
                copy.assign(array)


def load_exchanges(model, states):
    """Gives the exchanges of a model what they had on all processes.

    Args:
        model: Keras model.
        states: list of the processes' states.
    """
    together = {name: array for state in states for name, array in state.items()}
    for i, exchange in enumerate(gradient_exchanges_of(model)):
        saved = []
        while built := part_of(together, f"exchange_{i}/{len(saved)}"):
            ranks = 1 + max(int(name.split("/")[0]) for name in built)
            saved.append([part_of(built, str(rank)) for rank in range(ranks)])
        exchange.load_states(saved)


def random_state():
    """The states of Python's and NumPy's global random generators: NumPy string."""
    name, keys, *rest = np.random.get_state()
    return np.array(json.dumps([random.getstate(), [name, keys.tolist(), *rest]]))


def set_random_state(state):
    """Sets the generators to what `random_state` returned."""
    python, numpy = json.loads(str(state))
    random.setstate((python[0], tuple(python[1]), python[2]))
    np.random.set_state(tuple(numpy))


def _copies(variable):
    value = variable.value if isinstance(variable, keras.Variable) else variable
    if isinstance(value, tf.distribute.DistributedValues):
        return value.values
    return [value]
