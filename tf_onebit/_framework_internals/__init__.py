"""All uses of Keras' and TensorFlow's internals, which later versions may change.

Other rooms import nothing of `keras.src` and `tensorflow.python`, walk no frames, and change no
object's class. They touch no private attribute of an object that is not their own. Instead they
call the functions here, one for each such use. Each function names the lines that it relies on, by
path and number, in Keras 3.15.1 and TensorFlow 2.21.0. `tests/unit/test_framework_internals.py`
tests each function with the installed versions.

Modules `keras_*` concern Keras, and import it. Modules `tf_*` concern TensorFlow. `hooks` lists the
private methods that classes of other rooms override.
"""
