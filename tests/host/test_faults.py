"""Every fault planted in a family is caught, ends only its own config, and leaves nothing behind."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from autotune.api.device_names import binary_cache
from autotune.compilation.compile import Binary
from autotune.devices.device import DeviceInfo
from autotune.errors import Rejected
from autotune.evaluation.evaluator import DeviceEvaluator
from autotune.family.render import render
from autotune.family.source import KernelSource
from autotune.family.space import BoundTemplate, SearchSpace
from autotune.family.template_files import load_template
from autotune.trial import Config, Outcome
from autotune.workers.device_worker import Deadlines
from tests.faulty_study import (
    FAMILY,
    Found,
    nothing_is_left_of_a_run_killed_in_an_endless_kernel,
    study_with_every_fault,
)
from tests.injected_faults import FAULTS, GOOD, RAGGED
from tests.processes import busy_factor

pytestmark = pytest.mark.cxx

HOST_FAULTS = {name: fault for name, fault in FAULTS.items() if fault.host}
DEADLINE_S = 4.0 * busy_factor()  # limit of one evaluation; a correct one takes well under a second
COMPILE_DEADLINE_S = 8.0 * busy_factor()  # a correct program takes well under two seconds


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Found:
    """One study with the correct family and all faulty ones."""
    deadlines = Deadlines(evaluate_s=DEADLINE_S, compile_s=COMPILE_DEADLINE_S)
    folder = tmp_path_factory.mktemp("faults")
    return study_with_every_fault(folder, "host", RAGGED, HOST_FAULTS, jobs=2, deadlines=deadlines)


@pytest.mark.parametrize("name", HOST_FAULTS)
def test_fault_is_caught(found: Found, name: str) -> None:
    assert found.endings[name].ending in HOST_FAULTS[name].host, found.endings[name].message


def test_study_with_every_fault_finds_the_good_family(found: Found) -> None:
    assert found.only_the_good_family_is_correct()
    assert found.endings.keys() == {FAMILY, *HOST_FAULTS}


def test_study_with_every_fault_leaves_nothing_behind(found: Found) -> None:
    assert not found.processes
    assert not found.files


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("exit", "worker ended with status 0"),
        ("abort", "worker killed by SIGABRT"),
        ("endless_loop", "no answer within"),
        ("assert", "kernel.cu"),
        ("syntax_error", "kernel.cu:"),
        ("static_smem", "too much shared data"),
        ("divergent_barrier", "barrier of line"),
        ("store_far_away", "illegal address"),
        ("short_row", "q = 20"),
        ("forgotten_map", "k = 2"),
        ("too_few_blocks_for_images", "n = 2"),
        ("store_behind_array", "overwrites 4 bytes behind y (14364 bytes), the nearest at byte 14364"),
        ("workspace_of_terabytes", "exceed the memory of this machine"),
        ("compiler_never_ends", "no answer within"),
        ("compiler_is_killed", "the compiler was killed by SIGKILL"),
        ("compile_worker_is_killed", "worker killed by SIGKILL"),
        ("worker_is_killed", "worker killed by SIGKILL"),
    ],
)
def test_message_says_what_happened(found: Found, name: str, words: str) -> None:
    assert words in found.endings[name].message.replace("q = 20;", "q = 20"), found.endings[name]


def test_kernel_behind_a_faulty_one_is_run_afterwards(tmp_path: Path) -> None:
    evaluator = DeviceEvaluator(["host"], 2, cache=binary_cache(), deadlines=Deadlines(evaluate_s=DEADLINE_S))
    try:
        evaluator.begin_layer(RAGGED)

        def kernel(path: Path) -> tuple[KernelSource, Binary]:
            space = SearchSpace(BoundTemplate(load_template(path), RAGGED, evaluator.info))
            source = render(space.bound, space.config(0))
            return source, evaluator.compile(source).result()

        def outcome(kernel: tuple[KernelSource, Binary]) -> str:
            try:
                evaluator.evaluate(*kernel, cache="hot", best_us=None)
            except Rejected as rejected:
                return f"{Outcome(rejected.outcome).value}/{rejected.reason}"
            return "correct/"

        good, faulty = kernel(GOOD), ("trap", "store_before_filters", "mirrored_taps")
        for name in faulty:
            (tmp_path / f"{name}.cu.j2").write_text(FAULTS[name].text)
        wanted = {name: kernel(tmp_path / f"{name}.cu.j2") for name in faulty}
        with ThreadPoolExecutor(evaluator.slots) as threads:
            asked = [kernel for each in wanted.values() for kernel in (good, each, good, good)]
            endings = list(threads.map(outcome, asked))
        assert evaluator.slots == 2
        for name, (before, fault, *behind) in zip(faulty, zip(*[iter(endings)] * 4, strict=True), strict=True):
            assert fault in FAULTS[name].host
            assert [before, *behind] == 3 * ["correct/"]
    finally:
        evaluator.close()


def test_killed_run_takes_its_hanging_kernel_along(tmp_path: Path) -> None:
    assert nothing_is_left_of_a_run_killed_in_an_endless_kernel(tmp_path, "host")


@pytest.mark.long
def test_check_of_a_faulty_family_fails_and_names_the_configs(tmp_path: Path) -> None:
    path = tmp_path / "mirrored.cu.j2"
    path.write_text(FAULTS["mirrored_taps"].text)
    done = subprocess.run(
        [sys.executable, "-m", "autotune", "check", str(path), "--device", "host", "--configs", "1"],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    assert done.returncode == 1
    assert "tile = [16]" in done.stdout
    assert "images = [2]" in done.stdout
    assert "wrong" in done.stdout
    assert "mirrored: 1 of 1 configs failed" in done.stderr
    assert "Traceback" not in done.stderr


def test_too_much_dynamic_smem_is_refused_before_compiling(tmp_path: Path) -> None:
    path = tmp_path / "greedy.cu.j2"
    path.write_text(GOOD.read_text().replace('"4 * tile_h * tile_w"', '"300000"'))
    device = DeviceInfo("host", "any", arch=90, sm_count=2, memory_bytes=1 << 34)
    bound = BoundTemplate(load_template(path), RAGGED, device)
    assert SearchSpace(bound).default is None
    with pytest.raises(Rejected, match="shared memory of conv2d_shared_tile: 300000 exceeds 232448") as error:
        bound.check(Config.of("greedy", {"tile": 16, "images": 2}))
    assert (error.value.outcome, error.value.reason) == ("invalid_config", "resource_limit")
