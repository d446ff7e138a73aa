"""Names of exchange methods before 0.2, for subclasses that users have written."""

import warnings
from typing import Any

from tf_onebit.exchanges.stages import run_stages

_METHODS = {"in_full_precision": "uncompressed", "measures": "metrics"}


class DeprecatedNames:
    """Mixin that keeps old method names of exchanges working. They are removed in 0.3."""

    def __init_subclass__(cls, **arguments: Any) -> None:
        super().__init_subclass__(**arguments)
        if "exchange" in vars(cls):
            raise TypeError(
                "Exchanges have stages in place of `exchange`: encode, aggregate and deliver. "
                f"Received: {cls.__name__}, which defines exchange. Define encode and deliver: "
                "docs/your_own_exchange.md shows how."
            )
        for old, new in _METHODS.items():
            if old in vars(cls):
                _warn(f"{cls.__name__}.{old}", new)
                setattr(cls, new, vars(cls)[old])

    def __getattr__(self, name: str) -> Any:
        if name in _METHODS:
            _warn(name, _METHODS[name])
            return getattr(self, _METHODS[name])
        if name == "exchange":
            _warn("exchange.exchange(gradients)", "tf_onebit.exchanges.run_stages")
            return lambda gradients, scale=1.0: run_stages(self, gradients, scale)
        if name == "request_name":
            _warn("request_name(stage)", 'f"{self.scope}/{stage}"')
            return lambda stage: f"{self.scope}/{stage}"
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")


def _warn(old: str, new: str) -> None:
    warnings.warn(
        f"{old} is now {new}. The old name goes in 0.3.", DeprecationWarning, stacklevel=3
    )
