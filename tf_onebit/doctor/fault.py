"""What makes the command fail."""


class Fault(str):
    """A line of the report: something that is needed does not work, and what to do."""
