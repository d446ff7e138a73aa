"""Descriptions of a model and its optimizers, which a backup is compared with."""

import hashlib
import json
import numbers
import re
import warnings

import keras
import numpy as np

from tf_onebit._framework_internals.keras_models import has_layers, layers_of
from tf_onebit._training.model_optimizers import inner_optimizer, optimizers_of

# Fields that say where a class comes from, depend on the data, are drawn at random, or change in
# training.
_LEFT_OUT = {
    *("module", "registered_name", "build_config", "build_input_shape", "batch_shape"),
    *("seed", "trainable"),
}
# Fields in which Keras refers to layers by name. Names have numbers that depend on what a program
# has made before.
_REFERENCES = {"name", "keras_history", "input_layers", "output_layers"}
_NUMBER = r"(_\d+)+$"
_LONG = 100  # longer lists are replaced by a digest
_FUNCTION = "a function without a name"


def describe(model):
    """Describes the architecture of a model by its layers: list of JSON values.

    Names do not count. The description excludes what cannot be known: the code of functions without
    a name, and the configuration of layers that do not define one.

    Args:
        model: Keras model that is built.
    """
    layers = layers_of(model)
    places = {}
    for layer in layers:
        places.setdefault(layer.name, len(places))
        for operation in getattr(layer, "operations", ()):
            places.setdefault(operation.name, len(places))
    return [
        {"layer": layer.name, "class": type(layer).__name__, "config": _config(layer, places)}
        for layer in sorted(layers, key=has_layers)  # layers without inner layers first
        if not isinstance(layer, keras.layers.InputLayer)
    ]


def describe_optimizers(model):
    """Describes the optimizers of a model: list of JSON values."""
    return [_description_of_optimizer(optimizer) for optimizer in optimizers_of(model)]


def require_same_model(saved, description):
    """Raises ValueError if the description of a backup's model differs from a model's."""
    if len(saved) != len(description):
        raise ValueError(f"it has {len(saved)} layers, and the model has {len(description)}")
    for then, now in zip(saved, description, strict=True):
        if then["class"] != now["class"]:
            raise ValueError(
                f"its layer {then['layer']!r} is a {then['class']}, and the model's "
                f"{now['layer']!r} is a {now['class']}"
            )
        for name, one, other in _differences(then["config"], now["config"]):
            raise ValueError(
                f"its layer {then['layer']!r}, a {then['class']}, has {name} = {_short(one)}, and "
                f"the model's {now['layer']!r} has {_short(other)}"
            )


def require_same_optimizers(saved, description):
    """Raises ValueError if a backup's optimizers have other classes, or keep other variables."""
    if len(saved) != len(description):
        raise ValueError(f"it has {len(saved)} optimizers, and the model has {len(description)}")
    for then, now in zip(saved, description, strict=True):
        if then["class"] != now["class"]:
            raise ValueError(f"its optimizer is {then['class']}, and the model's is {now['class']}")
        if now["variables"] is not None and then["variables"] != now["variables"]:
            told = [
                f"{name} = {_short(one)}, the model's {_short(other)}"
                for name, one, other in _differences(then["config"], now["config"])
            ]
            raise ValueError(
                f"its optimizer {then['class']} has other variables than the model's: "
                f"{'; '.join(told) or 'of another number'}"
            )


def resumed_settings(saved, description):
    """Describes the settings in which a backup's optimizers differ from the program's.

    A learning rate that is a number is a variable in Keras, and comes from the backup. All other
    settings come from the program.

    Returns:
        List of sentences.
    """
    told = []
    for then, now in zip(saved, description, strict=True):
        for name, one, other in _differences(then["config"], now["config"]):
            ours, theirs = f"the program's {name} = {_short(other)}", f"the backup's {_short(one)}"
            if name == "learning_rate" and isinstance(one, float) and isinstance(other, float):
                ours, theirs = (
                    f"the backup's {name} = {_short(one)}",
                    f"the program's {_short(other)}",
                )
            told.append(f"The {now['class']} continues with {ours}, not with {theirs}.")
    return told


def _description_of_optimizer(optimizer):
    inner = inner_optimizer(optimizer)
    name, config = type(inner).__name__, _config(inner, {})
    if inner is not optimizer:
        name = f"{type(optimizer).__name__} of {name}"
        config = (_config(optimizer, {}) or {}) | (config or {})
        config.pop("inner_optimizer", None)
    # The end of a variable's name is its kind; the rest names the weight.
    paths = [re.sub(_NUMBER, "", variable.name) for variable in optimizer.variables]
    kinds = [path.split("_")[-1] for path in paths] if optimizer.built else None
    return {"class": name, "variables": kinds, "config": config}


def _config(thing, places):
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Keras warns of functions that it could not reload
            return _plain({**thing.get_config(), "name": ""}, places)
    except Exception:  # a user's get_config may raise any error
        return None


def _plain(value, places, key=""):
    """Converts a value of a configuration to JSON, without what differs between equal programs."""
    if isinstance(value, dict):
        if value.get("class_name") == "__lambda__" or list(value) == ["value"]:
            return _FUNCTION
        if value.get("class_name") == "__keras_tensor__":
            return _plain(value["config"]["keras_history"], places, "keras_history")
        known = {k: v for k, v in value.items() if k not in _LEFT_OUT}
        if key == "layers" and _name(value) in places:
            known.pop("config", None)  # the layer has its own description
        return {str(k): _plain(v, places, _key(k, key)) for k, v in known.items()}
    if isinstance(value, (list, tuple)):
        plain = [_plain(one, places, key) for one in value]
        return plain if len(plain) <= _LONG else _digest(json.dumps(plain).encode())
    if isinstance(value, str):
        if key not in _REFERENCES:
            return value
        return places.get(value, re.sub(_NUMBER, "", value))
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, numbers.Real):
        return float(value)
    if hasattr(value, "__array__"):
        array = np.asarray(value)
        return [str(array.dtype), list(array.shape), _digest(array.tobytes())]
    if isinstance(value, type):
        return value.__name__
    name = getattr(value, "__name__", type(value).__name__)
    return _FUNCTION if name == "<lambda>" else name


def _name(description):
    """Returns the name of a layer in Keras' description of it."""
    config = description.get("config")
    return description.get("name", config.get("name") if isinstance(config, dict) else None)


def _key(key, outer):
    return outer if outer in _REFERENCES else str(key)


def _digest(data):
    return hashlib.sha256(data).hexdigest()


def _differences(one, other, path=""):
    """Returns the differences of two configurations: list of (name, value, value)."""
    if one is None or other is None:  # not known
        return []
    found = []
    for name in one | other:
        mine, theirs, full = one.get(name), other.get(name), f"{path}{name}"
        if mine == theirs:
            continue
        if _are_alike(mine, theirs):
            path_within = path if name == "config" else f"{full}."
            found += _differences(_by_name(mine), _by_name(theirs), path_within)
        else:
            found.append((full, mine, theirs))
    return found


def _are_alike(one, other):
    """Tells whether two values can be compared part by part."""
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other)
    both = isinstance(one, dict) and isinstance(other, dict)
    return both and one.get("class_name") == other.get("class_name")


def _by_name(value):
    return {str(i): one for i, one in enumerate(value)} if isinstance(value, list) else value


def _short(value):
    if isinstance(value, float):
        return f"{value:.7g}"
    if isinstance(value, dict):
        value = value.get("class_name", value)
    text = str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
