"""Objects that Keras, TensorFlow or a program has made, given another class.

Python changes the class of an object where both classes lay out its memory alike. So a program
keeps the object that it has, with everything in it.
"""


def become(instance, cls):
    """Makes an object one of another class.

    Raises:
        TypeError: if the classes lay out memory differently, as where only one has `__slots__`.
    """
    instance.__class__ = cls


def overlay(instance, *mixins, **attributes):
    """Puts mixins and attributes in front of the class of an object.

    The new class has the old one's name.

    Args:
        instance: object.
        *mixins: classes, the first of which comes first.
        **attributes: of the new class.
    """
    cls = type(instance)
    become(instance, type(cls.__name__, (*mixins, cls), attributes))
