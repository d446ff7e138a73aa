"""Former place of `flush` and `without_delay`."""
