"""The two clocks. Pure cores get times as arguments; only shells look here."""

import time


def monotonic() -> float:
    """Seconds from an arbitrary start; for intervals within one process."""
    return time.monotonic()


def wall() -> float:
    """Seconds since the epoch; for what other processes read (arrival, deadlines)."""
    return time.time()
