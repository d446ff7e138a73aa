"""Objects that are described by their hyper-parameters, and can be rebuilt from them."""

import functools
import importlib
import inspect
from typing import Any, Self


class Configurable:
    """Base class with hyper-parameters: `get_config` and `from_config` as in Keras, and `clone`."""

    def get_config(self) -> dict[str, Any]:
        """Returns the constructor's arguments: a dictionary of JSON values."""
        raise NotImplementedError(f"{type(self).__name__} must define get_config.")

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        """Makes an object with these hyper-parameters and no state."""
        return cls(**config)

    def clone(self) -> Self:
        """Makes an object with the same hyper-parameters and no state."""
        return type(self).from_config(self.get_config())


class _ClassPath(str):
    """Path that knows its class, also a class made in a function, which cannot be imported."""

    __slots__ = ("named",)
    named: type


def class_path(cls: type) -> str:
    """Returns the path of a class: "module:qualified name"."""
    path = _ClassPath(f"{cls.__module__}:{cls.__qualname__}")
    path.named = cls
    return path


def import_class(path: str) -> type[Any]:
    """Returns the class of a path from `class_path`, also from another process.

    Raises:
        ValueError: if another process has made the class in a function.
    """
    if isinstance(path, _ClassPath):
        return path.named
    module, names = path.split(":")
    if "<locals>" in names:
        raise ValueError(
            "A class must be at the top level of a module so that it can be loaded. Received: "
            f"{names} of the module {module}. Move it out of the function that makes it."
        )
    found: Any = importlib.import_module(module)
    return functools.reduce(getattr, names.split("."), found)


def serialize(configurable: Configurable) -> dict[str, Any]:
    """Describes an object, with its class, as JSON values."""
    return {"class": class_path(type(configurable)), "config": configurable.get_config()}


def deserialize(description: Any) -> Any:
    """Makes the object that `serialize` described. Returns other values unchanged."""
    if not isinstance(description, dict):
        return description
    return import_class(description["class"]).from_config(description["config"])


def as_python(value: Any, package: str = "") -> str:
    """Returns the Python expression for a serialized object, without default arguments.

    Args:
        value: result of `serialize`, or a JSON value.
        package: prefix of the names of classes, for example "tf_onebit.".

    Example:
        >>> from tf_onebit.exchanges import OneBit, WarmStart
        >>> as_python(serialize(WarmStart(OneBit(min_size=64, exclude=["a"]), steps=5)))
        "WarmStart(OneBit(min_size=64, exclude=['a']), steps=5)"
    """
    if isinstance(value, list):
        return f"[{', '.join(as_python(item, package) for item in value)}]"
    if not isinstance(value, dict) or set(value) != {"class", "config"}:
        return repr(value)
    cls = import_class(value["class"])
    parameters = inspect.signature(cls).parameters
    arguments = []
    for name, given in value["config"].items():
        default = parameters[name].default
        if default is inspect.Parameter.empty:
            arguments.append(as_python(given, package))
        elif given != (list(default) if isinstance(default, tuple) else default):
            arguments.append(f"{name}={as_python(given, package)}")
    return f"{package}{cls.__name__}({', '.join(arguments)})"
