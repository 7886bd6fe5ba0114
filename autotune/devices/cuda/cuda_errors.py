"""The driver's errors -> `Rejected`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pycuda.driver as driver

from autotune.errors import Rejected
from autotune.trial import Outcome

_STICKY = {
    "illegal memory access": "illegal_address",
    "misaligned address": "misaligned_address",
    "illegal instruction": "trap",
    "unspecified launch failure": "trap",
    "device-side assert": "assert",
    "too many resources requested": "launch_failure",
    "invalid argument": "launch_failure",
    "launch timed out": "hang",
    "out of memory": "out_of_memory",
}


@contextmanager
def rejecting() -> Iterator[None]:
    """Raise Rejected for an error of the driver, also one of an earlier kernel."""
    try:
        yield
    except driver.Error as error:
        raise rejected(error) from None


def rejected(error: Exception) -> Rejected:
    """The outcome of a trial for a driver error."""
    message = str(error)
    reason = next((reason for phrase, reason in _STICKY.items() if phrase in message.lower()), "launch_failure")
    outcome = Outcome.TIMEOUT if reason == "hang" else Outcome.RUNTIME
    return Rejected(outcome, reason, message)
