"""Whether other programs use a GPU, according to NVML's bindings."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace

import pytest

from autotune.devices.cuda import nvml
from autotune.devices.cuda.nvml import Sensors


class NvmlError(Exception):
    """An error of NVML."""


def bindings(answers: Iterator[int]) -> SimpleNamespace:
    """NVML's bindings on a machine whose GPU is this busy in consecutive answers, and unknown afterwards."""

    def utilization(_handle: object) -> SimpleNamespace:
        for percent in answers:
            return SimpleNamespace(gpu=percent, memory=0)
        raise NvmlError

    ignored: Callable[..., object] = lambda *_: object()  # noqa: E731
    return SimpleNamespace(
        NVMLError=NvmlError,
        nvmlInit=ignored,
        nvmlDeviceGetHandleByPciBusId=ignored,
        nvmlDeviceGetUtilizationRates=utilization,
    )


@pytest.mark.parametrize(
    ("answers", "busy"),
    [((0,), 0), ((4, 90), 4), ((90, 0), 0), ((90, 85), 85), ((90,), 90), ((), None)],
    ids=["idle", "a desktop", "what has just ended", "what goes on", "unknown the second time", "unknown"],
)
def test_a_gpu_is_busy_when_it_still_is_a_second_later(
    answers: tuple[int, ...], busy: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nvml, "pynvml", bindings(iter(answers)))
    monkeypatch.setattr(nvml, "_PERIOD_S", 0.0)
    assert Sensors("0000:00:00.0").busy_percent() == busy


def test_without_bindings_nothing_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvml, "pynvml", None)
    assert Sensors("0000:00:00.0").busy_percent() is None
