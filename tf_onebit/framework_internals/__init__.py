"""All that this package takes from inside Keras and TensorFlow, and that they may change.

Other rooms import nothing of `keras.src` and `tensorflow.python`, walk no frames, change no
object's class, and touch no private attribute of an object that is not their own. They call what
is here: one function for each such thing. The line that it relies on stands beside it, as a path
and a number, of Keras 3.15.1 and TensorFlow 2.21.0. `tests/unit/test_framework_internals.py` tries
each on what is installed.

`keras_*` is of Keras, and imports it; `tf_*` is of TensorFlow. `hooks` lists the private methods
that classes of other rooms override.
"""
