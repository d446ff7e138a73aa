"""Changes of the class of objects that Keras, TensorFlow or a program has made.

Python can change the class of an object if both classes have the same memory layout. The program
keeps its object, with all attributes.
"""


def become(instance, cls):
    """Changes the class of an object.

    Raises:
        TypeError: if the memory layouts differ, for example if only one class has `__slots__`.
    """
    instance.__class__ = cls


def overlay(instance, *mixins, **attributes):
    """Puts mixins and attributes in front of the class of an object.

    The new class has the old one's name, module and documentation.

    Args:
        instance: object.
        *mixins: classes, in method resolution order.
        **attributes: attributes of the new class.
    """
    cls = type(instance)
    attributes = {"__module__": cls.__module__, "__doc__": cls.__doc__, **attributes}
    become(instance, type(cls.__name__, (*mixins, cls), attributes))
