"""Cases that `make test` leaves out, because another one is about the same code.

    @pytest.mark.parametrize("optimizer", ["adam", *nightly("adagrad", "lamb")])

Whole tests are marked with `@pytest.mark.nightly`.
"""

import pytest


def nightly(*cases):
    """Returns the values of a parameter with which tests run in `make test-nightly` only: list."""
    return [pytest.param(case, marks=pytest.mark.nightly) for case in cases]


def nightly_rows(*rows):
    """Returns the same for several parameters, of which each row has one value: list."""
    return [pytest.param(*row, marks=pytest.mark.nightly) for row in rows]
