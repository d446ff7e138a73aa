"""Formatting of numbers for sentences and tables."""


def format_number(number: float, digits: int = 3) -> str:
    """Formats a number with a given number of significant digits, without an exponent.

    Numbers from 1000 up keep all digits before the decimal point.

    Args:
        number: number, at least 0.
        digits: number of significant digits.

    Returns:
        String.

    Example:
        >>> [format_number(number) for number in (0.012345, 9.996, 999.6, 1234567)]
        ['0.0123', '10', '1,000', '1,234,567']
    """
    text = f"{number:.{digits}g}"
    return f"{number:,.0f}" if "e+" in text or number >= 1000 else text


def format_milliseconds(seconds: float) -> str:
    """Formats a time in milliseconds.

    Example:
        >>> format_milliseconds(0.0123456)
        '12.3 ms'
    """
    return f"{format_number(1e3 * seconds)} ms"
