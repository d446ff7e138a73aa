"""The lines of the report that make the command fail."""


class Fault(str):
    """Line of the report on a needed part that does not work, with a remedy."""
