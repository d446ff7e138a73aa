"""The state of training: of the model, its optimizers, their exchanges, and random generators."""

import contextlib
import itertools
import json
import random
import warnings

import numpy as np

from tf_onebit._bmuf.connections import keep_states, synchronization_of
from tf_onebit._bmuf.meeting import End
from tf_onebit._framework_internals.keras_optimizers import (
    accumulated_gradients_of,
    trained_variables_of,
)
from tf_onebit._framework_internals.keras_random import (
    global_generator_state,
    set_global_generator_state,
)
from tf_onebit._framework_internals.tf_variables import copies_of
from tf_onebit._shares import is_part, members_here
from tf_onebit._training.model_optimizers import (
    flush_where_shown,
    gradient_exchanges_of,
    inner_optimizer,
    optimizers_of,
)
from tf_onebit.exchanges import GradientSpec
from tf_onebit.exchanges.state import part_of


def variables_of(model):
    """Returns the Keras variables of a model, its metrics and its optimizers: dictionary.

    Keys contain the variables' positions. Paths have numbers that depend on the rest of a program.
    """
    variables = {f"model/{i}/{v.name}": v for i, v in enumerate(model.variables)}
    variables |= {f"metrics/{i}/{v.name}": v for i, v in enumerate(model.metrics_variables)}
    for i, optimizer in enumerate(optimizers_of(model)):
        variables |= {f"optimizer_{i}/{j}": v for j, v in enumerate(optimizer.variables)}
    return variables


def collect(model, occasion):
    """Collects the state of this process: dictionary of NumPy arrays.

    If a variable has a copy on each device, the state has every copy.

    Args:
        model: Keras model.
        occasion: a few words for the occasion at which all workers call this.
    """
    for exchange in gradient_exchanges_of(model):
        exchange.drain(occasion)
    with _global_models(model):
        return _collected(model)


def metrics_of(model):
    """Returns the state of a model's metrics: dictionary of NumPy arrays."""
    variables = variables_of(model).items()
    state = _arrays({name: v for name, v in variables if name.startswith("metrics/")})
    return {name: np.array(array) for name, array in state.items()}


def _arrays(variables):
    return {
        f"{name}#{i}": copy.numpy()
        for name, variable in variables.items()
        for i, copy in enumerate(copies_of(variable))
    }


def _collected(model):
    state = _arrays(variables_of(model))
    places = {id(variable): i for i, variable in enumerate(model.trainable_variables)}
    for i, optimizer in enumerate(optimizers_of(model)):
        if optimizer.built:
            trained = [places.get(id(v), -1) for v in trained_variables_of(optimizer)]
            state[f"optimizer_{i}/trained"] = np.array(trained, np.int64)
    for i, exchange in enumerate(gradient_exchanges_of(model)):
        built = exchange.carried.states()
        state[f"exchange_{i}/built"] = np.array([exchange.workers.engine.world_size, len(built)])
        state[f"exchange_{i}/scale"] = np.array(exchange.scale)
        state[f"exchange_{i}/moments"] = np.array(exchange.moments)
        if exchange.steps_of_delay:
            state[f"exchange_{i}/gradients"] = np.array(
                json.dumps([_gradients_of(places, *built) for built in exchange.exchanges])
            )
        for j, states in enumerate(built):
            for rank, one in zip(exchange.workers.engine.ranks, states, strict=True):
                prefix = f"exchange_{i}/{j}/{rank}"
                state |= {f"{prefix}/{name}": array for name, array in one.items()}
        if (blocks := synchronization_of(exchange)) is not None:
            for rank, one in zip(exchange.workers.engine.ranks, blocks.states(), strict=True):
                prefix = f"exchange_{i}/blocks/{rank}"
                state |= {f"{prefix}/{name}": array for name, array in one.items()}
    return state


@contextlib.contextmanager
def _global_models(model):
    """Returns a context in which workers that train in blocks hold the global model."""
    with contextlib.ExitStack() as stack:
        for exchange in gradient_exchanges_of(model):
            if (blocks := synchronization_of(exchange)) is not None:
                stack.enter_context(blocks.view())
        yield


def end_epoch(model):
    """Synchronizes workers that train in blocks at the end of an epoch."""
    for exchange in gradient_exchanges_of(model):
        if (blocks := synchronization_of(exchange)) is not None:
            blocks.end(End.EPOCH)


def build_optimizers(model, state):
    """Builds the optimizers of a model, each for the variables that it trained in a state."""
    for i, optimizer in enumerate(optimizers_of(model)):
        trained, variables = state.get(f"optimizer_{i}/trained"), model.trainable_variables
        if optimizer.built or trained is None:
            continue
        if np.all(trained >= 0) and np.all(trained < len(variables)):
            optimizer.build([variables[j] for j in trained])


def require_same_variables(model, state):
    """Raises ValueError unless a state has the variables of a model, with the same shapes."""
    expected = {
        f"{name}#0": tuple(variable.shape)
        for name, variable in variables_of(model).items()
        if not name.startswith("metrics/")  # not all of them need exist yet
    }
    for name, shape in expected.items():
        if name not in state:
            raise ValueError(f"it has no variable {name}")
        if state[name].shape != shape:
            raise ValueError(
                f"its {name} has the shape {state[name].shape}, and the model's has {shape}"
            )


def assign_variables(model, state, except_for=()):
    """Assigns saved values to a model's variables, and to the variables of existing metrics.

    Args:
        model: Keras model.
        state: dictionary of NumPy arrays, as `collect` returns it.
        except_for: collection of the `id` of variables that are not changed.
    """
    for name, variable in variables_of(model).items():
        if id(variable) in except_for:
            continue
        for i, copy in enumerate(copies_of(variable)):
            # Additional devices take the copy of the first with the same part.
            same = f"{name}#{i % members_here(variable)}"
            array = state.get(f"{name}#{i}", state.get(same))
            if array is not None:
                copy.assign(_typed(array, copy))


def accumulated_anew(model, states, parts):
    """Divides accumulated gradients among another number of workers.

    Args:
        model: Keras model.
        states: list of the processes' states.
        parts: number of processes that the gradients are divided among.

    Returns:
        Dictionary of NumPy arrays that replace entries in the state of each process.
    """
    exchanges = gradient_exchanges_of(model)
    anew = {}
    for i, optimizer in enumerate(optimizers_of(model)):
        inner = inner_optimizer(optimizer)
        accumulators = {id(v) for v in accumulated_gradients_of(inner)}
        ratio = 1.0
        exchange = getattr(inner, "gradient_exchange", None)
        if exchange in exchanges:
            key = f"exchange_{exchanges.index(exchange)}/scale"
            ratio = next((state[key] for state in states if key in state), 1.0) / exchange.scale
        for j, variable in enumerate(optimizer.variables):
            if id(variable) not in accumulators:
                continue
            copies, name = copies_of(variable), f"optimizer_{i}/{j}#"
            members = members_here(variable)
            for k in range(len(copies)):
                arrays = _of_all_copies(states, name, k % members, members)
                total = sum(_typed(array, copies[0]) for array in arrays)
                anew[f"{name}{k}"] = ratio * total / (parts * len(copies) // members)
    return anew


def averaged_moments(model, states):
    """Averages the moments of workers that have their own, for other workers or processes.

    The mean of the workers' next updates stays what it would have been, if these are linear in the
    moments, as with momentum.

    Args:
        model: Keras model.
        states: list of the processes' states.

    Returns:
        Dictionary of NumPy arrays that replace entries in the state of each process.
    """
    averaged, exchanges = {}, gradient_exchanges_of(model)
    for i, optimizer in enumerate(optimizers_of(model)):
        exchange = getattr(inner_optimizer(optimizer), "gradient_exchange", None)
        if exchange not in exchanges:
            continue
        key = f"exchange_{exchanges.index(exchange)}/moments"
        if all(str(state.get(key, "after")) == "after" for state in states):
            continue  # all workers have the same
        for j, variable in enumerate(optimizer.variables):
            copies, name = copies_of(variable), f"optimizer_{i}/{j}#"
            members = members_here(variable)
            for k in range(len(copies)):
                arrays = _of_all_copies(states, name, k % members, members)
                values = [_typed(array, copies[0]).astype(np.float64) for array in arrays]
                averaged[f"{name}{k}"] = np.mean(values, axis=0).astype(values[0].dtype)
    return averaged


def _of_all_copies(states, name, member, members):
    """Returns the values of all copies of a variable with the part of a member: list of arrays.

    Args:
        states: list of the processes' states.
        name: begin of the copies' keys.
        member, members: number of the member, and of members in each process.
    """
    return [
        array
        for state in states
        for key, array in state.items()
        if key.startswith(name) and int(key.removeprefix(name)) % members == member
    ]


def load_exchanges(model, states):
    """Loads the states of a model's exchanges.

    Args:
        model: Keras model.
        states: list of the processes' states. If the number of workers is the same, the states of
            other processes may be empty.
    """
    together = {name: array for state in states for name, array in state.items()}
    for i, exchange in enumerate(gradient_exchanges_of(model)):
        saved = part_of(together, f"exchange_{i}")
        if not saved:
            continue  # the earlier run had no exchange
        ranks, count = saved["built"]
        states = [[part_of(saved, f"{j}/{rank}") for rank in range(ranks)] for j in range(count)]
        exchange.go_on_with(str(saved.get("moments", "after")))
        exchange.load_states(states, float(saved["scale"]))
        if exchange.steps_of_delay and "gradients" in saved:
            _build_delayed(model, exchange, json.loads(str(saved["gradients"])))
        in_blocks = [part_of(saved, f"blocks/{rank}") for rank in range(ranks)]
        keep_states(exchange, in_blocks if any(in_blocks) else None)
    others = part_of(together, f"exchange_{len(gradient_exchanges_of(model))}")
    if any(name.endswith("residual") for name in others):
        warnings.warn(
            "The backup has gradients that its workers had not sent yet. They are lost, because "
            "the model's optimizer exchanges no gradients. To keep them, use an optimizer that "
            "does, as for several workers.",
            stacklevel=2,
        )


def _gradients_of(places, exchanges, variables):
    """Describes gradients: list of [position of the variable, type, whether it is sparse].

    Returns None if a variable is not among the model's trainable ones.
    """
    specs = exchanges[0].specs
    known = all(id(variable) in places for variable in variables)
    pairs = zip(specs, variables, strict=True)
    return [[places[id(v)], spec.dtype, spec.sparse] for spec, v in pairs] if known else None


def _build_delayed(model, exchange, built):
    """Builds exchanges with delayed gradients: they may be flushed before the next step."""
    for gradients in itertools.takewhile(bool, built):
        variables = [model.trainable_variables[place] for place, _, _ in gradients]
        exchange.exchanges.of(
            tuple(
                GradientSpec(variable.path, tuple(variable.shape), dtype, sparse, is_part(variable))
                for variable, (_, dtype, sparse) in zip(variables, gradients, strict=True)
            ),
            variables,
        )
    flush_where_shown(model)


def random_state():
    """Returns the states of the global random generators of Python, NumPy and Keras: string."""
    name, keys, *rest = np.random.get_state()
    numpy = [name, keys.tolist(), *rest]
    return json.dumps([random.getstate(), numpy, global_generator_state()])


def set_random_state(model, state):
    """Sets the random generators to what `random_state` returned.

    Keras' generator is made in the scope of the model's strategy.
    """
    python, numpy, keras_state = json.loads(state)
    if keras_state is not None:
        with model.distribute_strategy.scope():
            set_global_generator_state(keras_state)
    # These come last, because making Keras' generator draws a random number.
    random.setstate((python[0], tuple(python[1]), python[2]))
    np.random.set_state(tuple(numpy))


def _typed(array, variable):
    """Returns a saved array in the type of its variable: NumPy lacks some, such as bfloat16."""
    return array.view(variable.dtype.as_numpy_dtype) if array.dtype.kind == "V" else array
