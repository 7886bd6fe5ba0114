"""A layer from host memory to host memory: right for every split of the batch, and wrong splits are caught."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from autotune.devices.device import HostArray
from autotune.devices.host import HostDevice
from autotune.errors import Rejected
from autotune.family.render import render
from autotune.family.space import BoundTemplate
from autotune.family.template import KernelTemplate
from autotune.family.template_files import load_template
from autotune.measurement.end_to_end_timer import (
    EndToEndPlan,
    EndToEndRequest,
    EndToEndTiming,
    Segment,
    cut,
    measure_end_to_end,
)
from autotune.measurement.reference import check_program
from autotune.measurement.verify import Verifier
from autotune.problem import Conv2dProblem
from autotune.trial import Config
from tests.compiled import compiled, host_device
from tests.fork_server import ForkServer
from tests.injected_faults import GOOD
from tests.long_run import long_run
from tests.unit.tiny import Command, Finished

pytestmark = pytest.mark.cxx

RAGGED = Conv2dProblem(13, 2, 9, 8, 4, 3, 3)
CONFIG = Config.of("shared_tile", {"tile": 16, "images": 2})


class Segment0In(HostDevice):
    """Copies every segment's input from the start of the batch."""

    def copy_in(self, to: int, source: HostArray, *, stream: int) -> None:
        whole = source if source.base is None else source.base
        super().copy_in(to, whole[: source.size], stream=stream)


class Segment0Out(HostDevice):
    """Copies every segment's output to the start of the batch."""

    def copy_out(self, to: HostArray, source: int, *, stream: int) -> None:
        whole = to if to.base is None else to.base
        super().copy_out(whole[: to.size], source, stream=stream)


@dataclass(frozen=True, slots=True)
class EndToEndRunner:
    """Runs plans of one problem on a device."""

    device: HostDevice
    verifier: Verifier
    family: KernelTemplate
    cxx: str

    def __call__(self, plan: EndToEndPlan) -> EndToEndTiming:
        problem = self.verifier.problem
        sources = [
            render(BoundTemplate(self.family, problem.with_runtime(n), self.device.info), CONFIG)
            for n in sorted({segment.n for segment in cut(problem.runtime_size, plan.segments)})
        ]
        kernels = tuple((source, compiled(source.program, cxx=self.cxx)) for source in sources)
        return measure_end_to_end(
            self.device, self.verifier, EndToEndRequest(self.verifier.problem, plan, kernels), time.perf_counter
        )


def runner(device: HostDevice, cxx: str, problem: Conv2dProblem = RAGGED) -> EndToEndRunner:
    check = compiled(check_program(problem), cxx=cxx)
    return EndToEndRunner(device, Verifier(device, problem, check), load_template(GOOD), cxx)


@pytest.fixture(scope="module")
def right(cxx: str) -> Iterator[EndToEndRunner]:
    device = host_device(cxx)
    yield runner(device, cxx)
    device.close()


@pytest.mark.parametrize("pinned", [False, True], ids=["pageable", "pinned"])
@pytest.mark.parametrize(("streams", "segments"), [(1, 4), (3, 13), *long_run((1, 1), (2, 5), (20, 7))])
def test_every_cut_of_the_batch_gives_the_whole_output(
    right: EndToEndRunner, streams: int, segments: int, pinned: bool
) -> None:
    timed = right(EndToEndPlan(streams, segments, pinned))
    assert timed.measured.error.over_bound < 1
    assert timed.measured.timing.median_us > 0
    assert timed.parts.distinct_segments == len(cut(RAGGED.n, segments))
    assert timed.parts.host_bytes == 4 * (RAGGED.array("x").elements + RAGGED.array("y").elements)
    assert min(timed.parts.copy_in_us, timed.parts.kernel_us, timed.parts.copy_out_us) > 0
    assert timed.parts.allocate_us > 0


def test_the_memory_is_given_back(right: EndToEndRunner) -> None:
    before = dict(right.device._sizes)
    right(EndToEndPlan(2, 4, pinned=False))
    assert right.device._sizes == before


@pytest.mark.parametrize(
    ("device_type", "reason", "words"),
    [
        (Segment0In, "inexact", "the first at n = 4, k = 0, p = 0, q = 0"),  # the first segment is right
        (Segment0Out, "unwritten", f"{9 * 4 * 7 * 6} of {13 * 4 * 7 * 6} outputs were never written"),
    ],
    ids=["input", "output"],
)
def test_segments_that_all_use_the_offset_of_the_first_are_caught(
    cxx: str, device_type: type[HostDevice], reason: str, words: str
) -> None:
    device = device_type(cxx)
    wrong = runner(device, cxx)
    assert wrong(EndToEndPlan(1, 1, pinned=False)).measured.error.over_bound < 1, "one segment has no other offset"
    with pytest.raises(Rejected) as caught:
        wrong(EndToEndPlan(2, 4, pinned=False))
    assert (caught.value.outcome, caught.value.reason) == ("wrong_result", reason)
    assert words in caught.value.message
    device.close()


def test_segments_that_the_data_cannot_tell_apart_are_refused(cxx: str) -> None:
    repeating = Conv2dProblem(2 * 61 * 53, 1, 2, 2, 1, 1, 1)  # both data sets repeat after half of the images
    device = host_device(cxx)
    halves = runner(device, cxx, repeating)
    with pytest.raises(Rejected) as caught:
        halves(EndToEndPlan(1, 2, pinned=False))
    assert (caught.value.outcome, caught.value.reason) == ("invalid_config", "indistinct")
    assert halves(EndToEndPlan(1, 3, pinned=False)).parts.distinct_segments == 3
    device.close()


def test_the_last_segment_is_ragged() -> None:
    assert cut(13, 4) == (Segment(0, 4), Segment(4, 4), Segment(8, 4), Segment(12, 1))
    assert cut(10, 1) == (Segment(0, 10),)
    assert cut(10, 20) == tuple(Segment(image, 1) for image in range(10))


STUDY = """name = "whole"
trials = 2
end_to_end = true
templates = ["shared_tile"]
measure.cache = "hot"
[space.end_to_end]
streams = [1, 3]
segments = [1, 4, 6, 50]
[[layer]]
name = "one"
n = 13
c = 2
h = 9
w = 8
k = 4
r = 3
s = 3
"""


@pytest.fixture
def autotune(tmp_path: Path, fork_server: ForkServer) -> Command:
    """Run the command line in a folder with the study; it must succeed."""
    (tmp_path / "whole.toml").write_text(STUDY)

    def run(*words: object) -> Finished:
        done = fork_server.run(tmp_path, *words)
        assert done.code == 0, done.err
        return done

    return run


def test_a_study_is_timed_end_to_end_once(autotune: Command) -> None:
    words = ("tune", "whole.toml", "--device", "host", "--family-dir", str(GOOD.parent), "--jobs", "1")
    rows = json.loads(autotune(*words, "--json").out)
    plans = {(row["streams"], row["segments"], row["pinned"]) for row in rows}
    # 6 segments of 13 images are the same as 5, and 50 the same as 13; with 1 segment, 3 streams have nothing to do
    assert plans == {(s, n, p) for s, n in ((1, 1), (1, 4), (3, 4)) for p in ("no", "yes")}
    for row in rows:
        assert row["layer"] == "whole.one"
        assert row["distinct_segments"] == row["segments"]
        assert row["error_over_bound"] < 1
        assert row["with_allocation_us"] == pytest.approx(row["median_us"] + row["allocate_us"])
        assert row["hidden_fraction"] is None or row["hidden_fraction"] < 0.5, "the host copies while nothing else runs"

    again = autotune(*words)
    assert "6 known" in again.err
    table = [line.split() for line in again.out.splitlines() if line.split()[:1] == ["whole.one"]]
    assert {line[1] for line in table} >= {"no", "yes"}
    trials = json.loads(autotune("trials", "--json").out)
    assert sum(trial["template"] == "end_to_end" for trial in trials) == 6
    best = json.loads(autotune("best", "--json").out)
    assert [row["template"] for row in best] == ["shared_tile"], "copies do not compete with kernels"


def test_null_copies_nothing(autotune: Command) -> None:
    done = autotune("tune", "whole.toml", "--device", "null", "--family-dir", str(GOOD.parent), "--json")
    assert "whole: the null device copies nothing: kernels only" in done.err
    assert [row["template"] for row in json.loads(done.out)] == ["shared_tile"]
