"""Numbers as text, for sentences and tables."""


def format_number(number, digits=3):
    """Formats a number to so many significant digits, and without an exponent.

    Whole numbers keep all of their digits.

    Args:
        number: at least 0.
        digits: how many.

    Returns:
        String.

    Example:
        >>> [format_number(number) for number in (0.012345, 9.996, 999.6, 1234567)]
        ['0.0123', '10', '1,000', '1,234,567']
    """
    text = f"{number:.{digits}g}"
    return f"{number:,.0f}" if "e+" in text or number >= 1000 else text
