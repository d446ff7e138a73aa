"""The program that the user names, or the reason why it cannot be checked."""

import pathlib
import tokenize

from tf_onebit._check.program import Program, is_within
from tf_onebit._check.training import trains

_FRAMEWORKS = ("keras", "tensorflow", "tf_keras", "tf_onebit")
_EXPECTED = "Give the file of a Python program that trains with Keras."


class NotAProgram(Exception):
    """A file that cannot be checked. The message says why, and what to give."""


def read(path: str) -> Program:
    """Returns the program in a file.

    Raises:
        NotAProgram: if the file is not a Python program that trains with Keras.
    """
    program = _parsed(path)
    modules = {one.module for one in program.imports}
    if not any(is_within(module, name) for module in modules for name in _FRAMEWORKS):
        raise NotAProgram(f"{path} imports neither Keras nor TensorFlow. {_EXPECTED}")
    if not trains(program):
        raise NotAProgram(
            f"{path} has no line that trains: no fit of a Keras model, and no loop with a gradient "
            f"tape. {_EXPECTED} If other modules of it train, check these."
        )
    return program


def _parsed(path: str) -> Program:
    if pathlib.Path(path).is_dir():
        raise NotAProgram(f"{path} is a directory. {_EXPECTED}")
    try:
        with tokenize.open(path) as file:
            return Program(path, file.read())
    except FileNotFoundError:
        raise NotAProgram(f"{path} does not exist. {_EXPECTED}") from None
    except OSError as error:
        raise NotAProgram(f"{path} cannot be read: {error.strerror}. {_EXPECTED}") from None
    except SyntaxError as error:
        where = f"{path}:{error.lineno}" if error.lineno else path
        raise NotAProgram(
            f"{where}: This is not valid Python: {error.msg}. Correct it, and check again."
        ) from None
    except (UnicodeDecodeError, ValueError) as error:
        raise NotAProgram(f"{path} is not a text of Python: {error}. {_EXPECTED}") from None
