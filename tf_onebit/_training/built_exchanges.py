"""BuiltExchanges: the exchanges of a program's gradients, built on first use and kept."""

from typing import NamedTuple

import tensorflow as tf


class Built(NamedTuple):
    """Exchange of a list of gradients.

    Attributes:
        exchanges: list of `Bucketed`, one for each worker of this process.
        variables: list of the gradients' variables.
    """

    exchanges: list
    variables: list


class BuiltExchanges:
    """Collection of exchanges, one for each list of variables whose gradients are exchanged.

    Args:
        build: function of a tuple of `GradientSpec` and the number of exchanges built so far. It
            returns a list of `Bucketed`, one for each worker of this process.
    """

    def __init__(self, build):
        self._build = build
        self._built = {}
        self._settings = {}

    def __len__(self):
        return len(self._built)

    def __iter__(self):
        return iter(self._built.values())

    def __getitem__(self, index):
        return list(self._built.values())[index]

    @property
    def all(self):
        """List of all exchanges of all workers of this process."""
        return [exchange for built in self for exchange in built.exchanges]

    def of(self, specs, variables):
        """Returns the exchanges of variables' gradients, one for each worker of this process.

        Args:
            specs: tuple of `GradientSpec`.
            variables: list of the gradients' variables.
        """
        # Names do not identify variables: many are called "Variable:0".
        key = specs, tuple(map(id, variables))
        if key not in self._built:
            exchanges = self._build(specs, len(self))
            with tf.init_scope():
                for setting in self._settings.values():
                    for exchange in exchanges:
                        setting(exchange, variables)
            # The variables are kept because Python reuses the ids of freed objects.
            self._built[key] = Built(exchanges, variables)
        return self._built[key].exchanges

    def set(self, name, setting):
        """Applies a setting to all exchanges, also to those that are not built yet.

        Args:
            name: name of the setting. It replaces an earlier setting of this name.
            setting: function of a `Bucketed` and the list of its variables, or None to leave new
                exchanges unchanged.
        """
        self._settings.pop(name, None)
        if setting is not None:
            self._settings[name] = setting
            for exchanges, variables in self:
                for exchange in exchanges:
                    setting(exchange, variables)
