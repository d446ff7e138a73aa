"""The warning that compression does not pay."""

from tf_onebit._formatting import format_number
from tf_onebit._monitor.exchange_times import seconds
from tf_onebit.planner import pays

# An exchange that sends nearly as many bytes as in full precision does not compress, or not yet.
_LEAST_DIFFERENCE = 0.01
# One reading may be an exception; several are not.
_READINGS = 3


class ExchangeCost:
    """Sums of the time that compression has cost in a job, and of the bytes that it has saved."""

    def __init__(self):
        self._readings = self._updates = 0
        self._cost_seconds = self._carried_seconds = 0.0
        self._bytes = self._saved_bytes = 0

    def add(self, times, bytes_sent, full_bytes):
        """Adds a reading.

        Args:
            times: `ExchangeTimes`.
            bytes_sent: bytes per exchange.
            full_bytes: bytes of the same exchange in full precision.
        """
        if not bytes_sent or abs(full_bytes - bytes_sent) < _LEAST_DIFFERENCE * full_bytes:
            return
        self._readings += 1
        self._updates += times.updates
        self._cost_seconds += seconds(times.worked)
        self._carried_seconds += seconds(times.carried)
        self._bytes += bytes_sent * times.updates
        self._saved_bytes += (full_bytes - bytes_sent) * times.updates

    @property
    def warning(self):
        """Text of the warning that compression does not pay, or None."""
        if self._readings < _READINGS or not self._carried_seconds:
            return None
        bytes_per_second = self._bytes / self._carried_seconds
        saved_bytes = max(0, self._saved_bytes)
        saved_seconds = saved_bytes / bytes_per_second
        carried_seconds = self._carried_seconds
        if pays(carried_seconds + saved_seconds, carried_seconds + self._cost_seconds):
            return None
        cost_ms, saved_ms = (1e3 * s / self._updates for s in (self._cost_seconds, saved_seconds))
        megabytes = format_number(saved_bytes / self._updates / 1e6)
        return (
            f"Compression does not pay. Per step it takes {format_number(cost_ms)} ms to encode, "
            f"add up and decode. The {megabytes} MB that it saves would take "
            f"{format_number(saved_ms)} ms, at the measured "
            f"{format_number(bytes_per_second / 1e6)} MB/s. Use tf_onebit.FullPrecision(), "
            "or an exchange that compresses more."
        )
