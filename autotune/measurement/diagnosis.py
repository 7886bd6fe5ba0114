"""Find out why a kernel is wrong by running it in other ways, if the device supports that."""

from __future__ import annotations

from collections.abc import Callable

from autotune.devices.device import Device, Variation
from autotune.errors import Rejected
from autotune.trial import Outcome

_IN_ORDER = Variation("ascending", one_core=True)
_DOUBTFUL = ("wrong", "unwritten", "inexact", "nondeterministic")
_RACE = "a race: right if blocks, and a block's threads, run one after another in ascending order; otherwise"
_UNWRITTEN_SMEM = (
    "outputs depend on shared memory that no thread had written yet; is a barrier (__syncthreads) missing "
    "between the writing and the reading?"
)


def diagnosed(
    device: Device, rejected: Rejected, *, verify: Callable[[], object], outputs: Callable[[], object]
) -> Rejected:
    """Return the rejection, adding the cause to its message if one is found.

    `verify` runs the kernel again and raises Rejected if the outputs are wrong. `outputs` runs it once and returns
    hashes of the outputs.
    """
    if rejected.outcome != Outcome.WRONG_RESULT or rejected.reason not in _DOUBTFUL:
        return rejected
    message = rejected.message
    try:
        if _reads_unwritten_smem(device, outputs):
            message = f"{message}; {_UNWRITTEN_SMEM}"
        if _right_in_order(device, verify):
            message = f"{_RACE}: {message}"
    except Rejected:  # one of these runs failed
        return rejected
    return Rejected(rejected.outcome, rejected.reason, message)


def _right_in_order(device: Device, verify: Callable[[], object]) -> bool:
    with device.varied(_IN_ORDER) as otherwise:
        if not otherwise:
            return False
        try:
            verify()
        except Rejected:
            return False
        return True


def _reads_unwritten_smem(device: Device, outputs: Callable[[], object]) -> bool:
    """Return whether the outputs depend on unwritten shared memory but are otherwise reproducible."""
    before, again = outputs(), outputs()
    if before != again:
        return False
    with device.varied(Variation(smem_byte=0)) as otherwise:
        return otherwise and outputs() != before
