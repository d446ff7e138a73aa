"""Objects that can be described by their hyper-parameters, and made again from them."""

import functools
import importlib
import inspect


class Configurable:
    """Has hyper-parameters: `get_config` and `from_config` as in Keras, `clone` from both."""

    def get_config(self):
        """Hyper-parameters as a dictionary of JSON values: the arguments of the constructor."""
        raise NotImplementedError(f"{type(self).__name__} must define get_config.")

    @classmethod
    def from_config(cls, config):
        """Makes an object with these hyper-parameters and no state."""
        return cls(**config)

    def clone(self):
        """Makes an object with the same hyper-parameters and no state."""
        return type(self).from_config(self.get_config())


class _ClassPath(str):
    """A path that knows its class, which need not be importable: functions make classes, too."""

    __slots__ = ("named",)


def class_path(cls):
    """Names a class: "module:qualified name"."""
    path = _ClassPath(f"{cls.__module__}:{cls.__qualname__}")
    path.named = cls
    return path


def import_class(path):
    """The class that `class_path` named, maybe in another process.

    Raises:
        ValueError: if that process has made it in a function.
    """
    if isinstance(path, _ClassPath):
        return path.named
    module, names = path.split(":")
    if "<locals>" in names:
        raise ValueError(
            "A class must be at the top level of a module to be found again. Received: "
            f"{names} of the module {module}. Move it out of the function that makes it."
        )
    return functools.reduce(getattr, names.split("."), importlib.import_module(module))


def serialize(configurable):
    """Describes an object, with its class, as JSON values."""
    return {"class": class_path(type(configurable)), "config": configurable.get_config()}


def deserialize(description):
    """Makes the object that `serialize` described; what is no description stays as it is."""
    if not isinstance(description, dict):
        return description
    return import_class(description["class"]).from_config(description["config"])


def as_python(value, package=""):
    """Returns the expression that makes what was serialized, without default arguments.

    Args:
        value: what `serialize` returned, or a JSON value.
        package: what stands before the names of classes, as "tf_onebit.".

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
