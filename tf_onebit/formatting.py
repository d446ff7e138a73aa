"""Numbers in sentences."""


def readable(number, digits=3):
    """A number to so many significant digits, but for whole ones all, and without an exponent.

    Args:
        number: at least 0.
        digits: how many.

    Returns:
        String.

    Example:
        >>> readable(0.012345), readable(9.996), readable(999.6), readable(1234567)
        ('0.0123', '10', '1,000', '1,234,567')
    """
    text = f"{number:.{digits}g}"
    return f"{number:,.0f}" if "e+" in text or number >= 1000 else text
