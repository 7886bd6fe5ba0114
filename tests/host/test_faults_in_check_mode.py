"""Faults that the host device does not notice, caught on `host:check`, each with a message that names the line."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from autotune.api.device_names import binary_cache
from autotune.errors import Rejected
from autotune.evaluation.evaluator import DeviceEvaluator
from autotune.family.render import relaunched, render
from autotune.family.source_map import with_source_lines
from autotune.family.space import BoundTemplate, SearchSpace
from autotune.family.template_files import load_template
from autotune.problem import Conv2dProblem
from autotune.workers.worker import SomeBlocksRequest
from tests.injected_faults import FAULTS, GOOD, RAGGED
from tests.long_run import long_run

pytestmark = pytest.mark.cxx

BYTES = 4 * RAGGED.array("x").elements
MESSAGES = {
    "smem_declared_too_small": "shared memory beyond the smem_bytes that its stage declares: 4 (conv2d_shared_tile)",
    "unused_load_behind_array": f"reads 4 bytes of the memory behind x ({BYTES} bytes), at byte {BYTES + 20}",
    "no_barrier_after_first_thread": "byte 0 of one in shared memory",
    "read_only_load_of_an_output": "of y, which block (0, 0, 1) writes, unseen by __ldg, in the same launch",
}

CULPRITS = {"smem_declared_too_small": "tile[at] =", "unused_load_behind_array": "volatile"}
"""Text in the line of the template that the message names."""


@pytest.fixture(scope="module")
def check(binaries: None) -> Iterator[DeviceEvaluator]:
    evaluator = DeviceEvaluator(["host:check"], 1, cache=binary_cache())
    evaluator.begin_layer(RAGGED)
    yield evaluator
    evaluator.close()


def verified(evaluator: DeviceEvaluator, path: Path) -> None:
    """Verify the first config of a family; the reason for its rejection names the lines of its file."""
    template = load_template(path)
    space = SearchSpace(BoundTemplate(template, RAGGED, evaluator.info))
    source = render(space.bound, space.config(0))
    try:
        evaluator.verify(source, evaluator.compile(source).result())
    except Rejected as rejected:
        message = with_source_lines(rejected.message, template, source, evaluator.info)
        raise Rejected(rejected.outcome, rejected.reason, message) from None


def test_good_family_is_right(check: DeviceEvaluator) -> None:
    verified(check, GOOD)


@pytest.mark.parametrize("name", [name for name, fault in FAULTS.items() if fault.checked])
def test_fault_is_caught(check: DeviceEvaluator, tmp_path: Path, name: str) -> None:
    path = tmp_path / "planted.cu.j2"
    path.write_text(FAULTS[name].text)
    with pytest.raises(Rejected) as error:
        verified(check, path)
    assert f"{error.value.outcome}/{error.value.reason}" in FAULTS[name].checked, error.value.message
    assert MESSAGES[name] in error.value.message
    if name in CULPRITS:
        line = int(error.value.message.split("planted.cu.j2:")[1].split(")")[0])
        assert CULPRITS[name] in FAULTS[name].text.splitlines()[line - 1]


@pytest.mark.parametrize(
    ("size", "offset", "message"),
    [
        ("C", "image", "signed integer overflow"),
        *long_run(("C", "static_cast<unsigned>(image)", "an offset wraps around")),
        ("K", "static_cast<unsigned>(image)", "the last element of y is not written, although it is for n = 4096"),
    ],
)
def test_blocks_of_a_launch_that_memory_does_not_hold_are_run(
    size: str, offset: str, message: str, check: DeviceEvaluator, tmp_path: Path
) -> None:
    path = tmp_path / "planted.cu.j2"
    path.write_text(GOOD.read_text().replace(f"static_cast<long long>(image) * {size}", f"{offset} * {size}"))
    template = load_template(path)
    problem = Conv2dProblem(131070, 2, 190, 210, 3, 3, 3, pad_h=1, pad_w=1, epilogue="bias")
    config = SearchSpace(BoundTemplate(template, RAGGED, check.info)).config(0)
    source = render(BoundTemplate(template, problem, check.info), config)
    large, *small = (
        relaunched(source, BoundTemplate(template, problem.with_runtime(n), check.info)) for n in (131069, 4096, 4097)
    )
    with pytest.raises(Rejected, match=message):
        check.run_some_blocks(SomeBlocksRequest(source, check.compile(source).result(), (large,), tuple(small)))


def test_missing_barrier_is_suggested_where_unwritten_shared_memory_reaches_outputs(
    check: DeviceEvaluator, tmp_path: Path
) -> None:
    path = tmp_path / "planted.cu.j2"
    path.write_text(FAULTS["no_barrier_before_use"].text)
    with pytest.raises(Rejected, match=r"thread .* reads, and nothing orders them"):
        verified(check, path)
