"""Tune a correct family and every fault planted in it: the result of each, and the processes and files that remain."""

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
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from autotune.api.device_names import binary_cache
from autotune.compilation.toolchain import find_cxx, find_nvcc
from autotune.evaluation.evaluator import DeviceEvaluator
from autotune.family.template_files import load_template
from autotune.problem import Conv2dProblem, Layer
from autotune.store import Store
from autotune.study import Measure, Study
from autotune.trial import Outcome
from autotune.tuning.layer_result import LayerResult
from autotune.tuning.tune import tune
from autotune.workers.device_worker import Deadlines

from .injected_faults import FAULTS, GOOD, PLANTED_COMPILER, Fault
from .processes import MARK, kill_device_worker, marked, removing_leftovers

FAMILY = GOOD.name.removesuffix(".cu.j2")


@dataclass(frozen=True, slots=True)
class Ending:
    """The result of one family."""

    ending: str
    message: str


@dataclass(frozen=True, slots=True)
class Found:
    """The result of one study over all faulty families."""

    result: LayerResult
    endings: dict[str, Ending]
    processes: list[str]
    """command lines of what the study started and left running"""
    files: list[str]
    """files that it left in the folder for temporary files"""

    def only_the_good_family_is_correct(self) -> bool:
        """Whether the study tried all families and found the correct one."""
        best = self.result.best
        correct = [name for name, end in self.endings.items() if end.ending.startswith(Outcome.CORRECT + "/")]
        return (
            best is not None
            and best.config.template == FAMILY
            and correct == [FAMILY]
            and self.result.evaluated == len(self.endings)
        )


def study_with_every_fault(
    folder: Path, device: str, problem: Conv2dProblem, faults: Mapping[str, Fault], *, jobs: int, deadlines: Deadlines
) -> Found:
    """Tune the correct family and these faulty ones, with a separate folder for temporary files."""
    mark = uuid.uuid4().hex
    (folder / "tmp").mkdir()
    families = {FAMILY: load_template(GOOD)}
    for name in sorted(faults, key=lambda name: name != "compiler_never_ends"):  # the other families run meanwhile
        path = folder / f"{name}.cu.j2"
        path.write_text(faults[name].text)
        families[name] = load_template(path)
    study = Study(
        name="faults",
        layers=(Layer("ragged", problem),),
        trials=len(families),
        templates=tuple(families),
        measure=Measure("hot"),
        workspace_limit_bytes=1 << 60,
    )
    compiler = folder / "bin" / "nvcc"
    compiler.parent.mkdir()
    compiler.write_text(PLANTED_COMPILER)
    compiler.chmod(0o755)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PLANTED_COMPILER", str(find_cxx() if device == "host" else find_nvcc()))
        patch.setenv(*(("CXX", str(compiler)) if device == "host" else ("CUDA_HOME", str(folder))))
        patch.setenv(MARK, mark)
        patch.setenv("TMPDIR", str(folder / "tmp"))
        patch.setattr(tempfile, "tempdir", None)
        evaluator = DeviceEvaluator([device], jobs, cache=binary_cache(), deadlines=deadlines)
        watch = (folder / "faults.db", mark, 2 * deadlines.evaluate_s)
        threading.Thread(target=kill_the_planted_worker, args=watch, daemon=True).start()
        try:
            with Store(str(folder / "faults.db")) as store:
                (result,) = tune(study, families, evaluator, store)
                trials = [row.trial for row in store.trials.list(None, outcome=None, sort="number", limit=None)]
        finally:
            evaluator.close()
    endings = {
        trial.config.template: Ending(f"{trial.outcome.value}/{trial.reason}", trial.message) for trial in trials
    }
    removing_leftovers(mark, 10.0)
    return Found(result, endings, list(marked(mark).values()), [path.name for path in (folder / "tmp").iterdir()])


def kill_the_planted_worker(database: Path, mark: str, within_s: float) -> None:
    """Wait until the kernel whose worker is to be killed is on the device, then kill that worker."""
    while True:
        time.sleep(0.2)
        with contextlib.suppress(sqlite3.OperationalError):  # the table does not exist yet
            query = "SELECT family FROM trials JOIN templates ON templates.id = template_id WHERE outcome = 'running'"
            with contextlib.closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as connection:
                running = {family for (family,) in connection.execute(query)}  # on the device, or queued
            spinning = {name for name in running & FAULTS.keys() if "timeout/hang" in FAULTS[name].host}
            if "worker_is_killed" in running and not spinning:
                kill_device_worker(mark, within_s, 1.5)
                return


HANG = """
import sys
from pathlib import Path
from autotune.evaluation.evaluator import DeviceEvaluator
from autotune.problem import Conv2dProblem
from autotune.family.render import render
from autotune.family.space import BoundTemplate, SearchSpace
from autotune.family.template_files import load_template
evaluator = DeviceEvaluator([sys.argv[2]], 1)
problem = Conv2dProblem(1, 1, 5, 5, 1, 3, 3)
space = SearchSpace(BoundTemplate(load_template(Path(sys.argv[1])), problem, evaluator.info))
source = render(space.bound, space.config(0))
evaluator.begin_layer(problem)
binary = evaluator.compile(source).result()
print("evaluating", flush=True)
evaluator.evaluate(source, binary, cache="hot", best_us=None)
"""


def nothing_is_left_of_a_run_killed_in_an_endless_kernel(folder: Path, device: str) -> bool:
    """Whether no process and no temporary file remains if SIGKILL ends a run during such a kernel."""
    path, mark, temporary = folder / "hang.cu.j2", uuid.uuid4().hex, folder / "tmp"
    path.write_text(FAULTS["endless_loop"].text)
    temporary.mkdir()
    environ = {**os.environ, MARK: mark, "TMPDIR": str(temporary)}
    words = [sys.executable, "-c", HANG, str(path), device]
    with subprocess.Popen(words, stdout=subprocess.PIPE, env=environ, text=True) as run:
        try:
            assert run.stdout is not None
            assert run.stdout.readline() == "evaluating\n"
            time.sleep(1.0)  # the kernel is now in its loop
            run.send_signal(signal.SIGKILL)
            run.wait()
            return removing_leftovers(mark, 5.0) and not list(temporary.iterdir())
        finally:
            run.kill()
