"""Every fault planted in a family is caught, ends its own config only, and leaves nothing behind."""

from __future__ import annotations

import contextlib
import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

from autotune.compilation.compile import Binary
from autotune.compilation.toolchain import find_cxx
from autotune.devices.device import DeviceInfo
from autotune.errors import Rejected
from autotune.evaluation.evaluate import DeviceEvaluator
from autotune.evaluation.seat import Deadlines
from autotune.family.render import render
from autotune.family.source import KernelSource
from autotune.family.space import BoundTemplate, SearchSpace
from autotune.family.template import load_template
from autotune.problem import Layer
from autotune.store import Store
from autotune.study import Measure, Study
from autotune.trial import Config, Outcome
from autotune.tuning.layer_record import LayerResult
from autotune.tuning.tune import tune
from tests.outside import MARK, kill_device_worker, marked, none_left
from tests.planted import FAULTS, GOOD, PLANTED_COMPILER, RAGGED

pytestmark = pytest.mark.cxx

HOST_FAULTS = {name: fault for name, fault in FAULTS.items() if fault.host}
FAMILY = GOOD.name.removesuffix(".cu.j2")
DEADLINE_S = 6.0  # of one evaluation; a good one takes well under a second, a busy machine is slow to kill
COMPILE_DEADLINE_S = 15.0  # a good program takes a few seconds on a busy machine


@dataclass(frozen=True, slots=True)
class Ending:
    """What became of one family."""

    ending: str
    message: str


@dataclass(frozen=True, slots=True)
class Found:
    """What one study over all faulty families came to."""

    result: LayerResult
    endings: dict[str, Ending]
    processes: list[str]
    """command lines of what the study started and left running"""
    files: list[str]
    """what it left in the folder for temporary files"""


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Found:
    """One study with the good family and all faulty ones, in a folder for temporary files of its own."""
    folder, mark = tmp_path_factory.mktemp("faults"), uuid.uuid4().hex
    (folder / "tmp").mkdir()
    families = {FAMILY: load_template(GOOD)}
    for name in sorted(HOST_FAULTS, key=lambda name: name != "compiler_never_ends"):  # the others run meanwhile
        path = folder / f"{name}.cu.j2"
        path.write_text(HOST_FAULTS[name].text)
        families[name] = load_template(path)
    study = Study(
        name="faults",
        layers=(Layer("ragged", RAGGED),),
        trials=len(families),
        templates=tuple(families),
        measure=Measure("hot"),
        workspace_limit_bytes=1 << 60,
    )
    compiler = folder / "planted-g++"
    compiler.write_text(PLANTED_COMPILER)
    compiler.chmod(0o755)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PLANTED_COMPILER", str(find_cxx()))
        patch.setenv("CXX", str(compiler))
        patch.setenv(MARK, mark)
        patch.setenv("TMPDIR", str(folder / "tmp"))
        patch.setattr(tempfile, "tempdir", None)
        deadlines = Deadlines(evaluate_s=DEADLINE_S, compile_s=COMPILE_DEADLINE_S)
        evaluator = DeviceEvaluator(["host"], 2, deadlines=deadlines)
        threading.Thread(target=kill_the_planted_worker, args=(folder / "faults.db", mark), daemon=True).start()
        try:
            with Store(str(folder / "faults.db")) as store:
                (result,) = tune(study, families, evaluator, store)
                trials = [row.trial for row in store.trials(None, outcome=None, sort="number", limit=None)]
        finally:
            evaluator.close()
    endings = {
        trial.config.template: Ending(f"{trial.outcome.value}/{trial.reason}", trial.message) for trial in trials
    }
    none_left(mark, 10.0)
    return Found(result, endings, list(marked(mark).values()), [path.name for path in (folder / "tmp").iterdir()])


def kill_the_planted_worker(database: Path, mark: str) -> None:
    """Wait until the kernel that is to lose its worker is on the device, then kill that worker."""
    while True:
        time.sleep(0.2)
        with contextlib.suppress(sqlite3.OperationalError):  # there is no table yet
            connection = sqlite3.connect(f"file:{database}?mode=ro", uri=True)
            query = "SELECT family FROM trials JOIN templates ON templates.id = template_id WHERE outcome = 'running'"
            running = connection.execute(f"{query} ORDER BY trials.id LIMIT 1").fetchone()  # the next waits behind it
            connection.close()
            if running == ("worker_is_killed",):
                kill_device_worker(mark, 2 * DEADLINE_S, 1.5)
                return


@pytest.mark.parametrize("name", HOST_FAULTS)
def test_fault_is_caught(found: Found, name: str) -> None:
    assert found.endings[name].ending in HOST_FAULTS[name].host, found.endings[name].message


def test_study_with_every_fault_finds_the_good_family(found: Found) -> None:
    assert found.result.best is not None
    assert found.result.best.config.template == FAMILY
    assert found.endings[FAMILY].ending == "correct/"
    assert [name for name, end in found.endings.items() if end.ending.startswith(Outcome.CORRECT + "/")] == [FAMILY]
    assert found.result.evaluated == len(HOST_FAULTS) + 1


def test_study_with_every_fault_leaves_nothing_behind(found: Found) -> None:
    assert not found.processes
    assert not found.files


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("exit", "worker ended with status 0"),
        ("abort", "worker killed by SIGABRT"),
        ("endless_loop", f"no answer within {DEADLINE_S:.0f} s"),
        ("assert", "kernel.cu"),
        ("syntax_error", "kernel.cu:"),
        ("static_smem", "too much shared data"),
        ("divergent_barrier", "barrier of line"),
        ("store_far_away", "illegal address"),
        ("short_row", "q = 20"),
        ("forgotten_map", "k = 2"),
        ("too_few_blocks_for_images", "n = 2"),
        ("store_behind_array", "1 words outside"),
        ("workspace_of_terabytes", "exceed the memory of this machine"),
        ("compiler_never_ends", f"no answer within {COMPILE_DEADLINE_S:.0f} s"),
        ("compiler_is_killed", "the compiler was killed by SIGKILL"),
        ("compile_worker_is_killed", "worker killed by SIGKILL"),
        ("worker_is_killed", "worker killed by SIGKILL"),
    ],
)
def test_message_says_what_happened(found: Found, name: str, words: str) -> None:
    assert words in found.endings[name].message.replace("q = 20;", "q = 20"), found.endings[name]


HANG = """
import sys
from concurrent.futures import wait
from pathlib import Path
from autotune.evaluation.evaluate import DeviceEvaluator
from autotune.evaluation.seat import Deadlines
from autotune.tuning.layer_record import LayerResult
from autotune.problem import Conv2dProblem
from autotune.family.render import render
from autotune.family.render import render
from autotune.family.source import KernelSource
from autotune.family.space import BoundTemplate, SearchSpace
from autotune.family.template import load_template
evaluator = DeviceEvaluator(["host"], 1)
problem = Conv2dProblem(1, 1, 5, 5, 1, 3, 3)
space = SearchSpace(BoundTemplate(load_template(Path(sys.argv[1])), problem, evaluator.info))
source = render(space.bound, space.config(0))
evaluator.begin_layer(problem)
binary = evaluator.compile(source).result()
print("evaluating", flush=True)
evaluator.evaluate(source, binary, cache="hot", best_us=None)
"""


def test_kernel_behind_a_faulty_one_is_run_afterwards(tmp_path: Path) -> None:
    evaluator = DeviceEvaluator(["host"], 2, deadlines=Deadlines(evaluate_s=DEADLINE_S))
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
    path, mark = tmp_path / "hang.cu.j2", uuid.uuid4().hex
    path.write_text(FAULTS["endless_loop"].text)
    run = subprocess.Popen(
        [sys.executable, "-c", HANG, str(path)], stdout=subprocess.PIPE, env={**os.environ, MARK: mark}, text=True
    )
    try:
        assert run.stdout is not None
        assert run.stdout.readline() == "evaluating\n"
        time.sleep(1.0)  # the kernel is now in its loop
        run.send_signal(signal.SIGKILL)
        run.wait()
        assert none_left(mark, 5.0)
    finally:
        run.kill()
        if run.stdout is not None:
            run.stdout.close()
        run.wait()


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
    assert "tile=16 images=2" in done.stdout
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
    assert (error.value.outcome, error.value.reason) == ("constraints", "resource_limit")
