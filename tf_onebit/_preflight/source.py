"""Source of a model, checked without TensorFlow, which takes seconds to load."""

import importlib.util
import os
import pathlib
import sys
import zipfile


def is_file(source):
    """Tells whether a source is a file of Keras, not a function."""
    return pathlib.Path(source).suffix in (".keras", ".h5")


def require_source(source):
    """Raises ValueError if a model's source is not found.

    Args:
        source: path of a file that Keras saved, or "module:function".
    """
    if is_file(source):
        _require_file(pathlib.Path(source))
        return
    module, separator, function = source.partition(":")
    if not separator or not module or not function:
        raise ValueError(
            "The model must be a file that Keras saved, or module:function with a function that "
            f"returns a compiled model. Received: {source!r}. Use for example model.keras, or "
            "train:make_model for the function make_model of train.py."
        )
    look_here()
    if importlib.util.find_spec(module.partition(".")[0]) is None:
        raise ValueError(
            f"There is no module {module!r} in {os.getcwd()} or on the Python path. Received: "
            f"{source!r}. Start the command in the folder of the module's file, or name another "
            "module."
        )


def look_here():
    """Lets Python import modules of the current folder, as `python train.py` does."""
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())


def _require_file(path):
    if not path.is_file():
        raise ValueError(f"There is no such file. Received: {str(path)!r}.")
    if path.suffix == ".keras" and not zipfile.is_zipfile(path):
        raise ValueError(
            "Keras saves .keras files as zip archives, and this file is not a complete one. "
            f"Received: {str(path)!r}. Save the model again: model.save({path.name!r})."
        )
