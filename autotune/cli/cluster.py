"""`agent`, and `tune --cluster`: many devices of many hosts. docs/cluster.md"""

from __future__ import annotations

import asyncio
import importlib.util
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import click

from autotune.analysis.rooflines import undominated, with_roofline
from autotune.api.device_names import binary_cache, cache_folder, device_names, devices_of_agents, jobs_default
from autotune.api.tuning import its_turn
from autotune.cli.best import BEST_COLUMNS, answer, show_answers
from autotune.cli.cluster_progress import cluster_observer
from autotune.cli.devices import open_evaluator
from autotune.cli.interrupts import end_interrupted, stopping_on_interrupt
from autotune.cli.options import writable
from autotune.cli.summary import left, summary
from autotune.compilation.compile import NVCC_FLAGS, Target
from autotune.compilation.toolchain import compiler_version, find_nvcc
from autotune.errors import AutotuneError, StudyError, ToolchainError, shortened
from autotune.evaluation.null import NullEvaluator
from autotune.family.template_files import load_templates
from autotune.problem import Layer
from autotune.study import Study, operations_of
from autotune.workers.compilers import CompilePool

if TYPE_CHECKING:
    from autotune.cluster.agent import CompilingAgent
    from autotune.cluster.ledger import Ledger
    from autotune.cluster.messages import DeviceClass
    from autotune.cluster.overview import ClusterResult, Overview
    from autotune.store import Store
    from autotune.tuning.layer_finals import FinalsPlan

CLUSTER = click.option(
    "--cluster",
    metavar="ADDRESS",
    help="Tune on the agents of a Dask scheduler: HOST:PORT, tls://HOST:PORT or a scheduler file; or on agents that "
    "are started for it: local:N here, ssh:HOST,HOST there, slurm:N by srun.",
)
DEVICE_CLASS = click.option(
    "--device-class",
    "classes",
    multiple=True,
    metavar="NAME",
    help="With --cluster: only on devices of this name or kind; may be repeated. Default: on every class there is.",
)


@click.command()
@click.argument("cluster", metavar="ADDRESS")
@click.option("--device", help="As of `tune`; of several (all, cuda:0,cuda:1) each gets an agent of its own.")
@click.option("--compilers", type=click.IntRange(min=1), help="Compilers at once; default: the cores, shared evenly.")
@click.option("--name", help="What it is called, and its journals; default: host and device.")
@click.option(
    "--compile-only", is_flag=True, help="Lend compilers alone, for GPUs on other hosts; no GPU is needed here."
)
@click.option("--once", is_flag=True, help="End when the scheduler is lost; default: wait for it to come back.")
def agent(
    cluster: str,
    device: str | None,
    compilers: int | None,
    name: str | None,
    *,
    compile_only: bool,
    once: bool,
) -> None:
    """Lend a device to the Dask scheduler at ADDRESS.

    ADDRESS is HOST:PORT, tls://HOST:PORT or a scheduler file.

    It needs no database: trials go to `autotune tune STUDY --cluster ADDRESS`. What could not be delivered is kept,
    and delivered when both are there again. Schedulers may come and go. Ctrl-C ends it after the trials at hand.
    """
    _require_distributed()
    names = device_names(device) if device and not compile_only else []
    cores = compilers or max(1, jobs_default() // max(1, len(names)))
    if len(names) > 1:
        _one_each(cluster, names, cores, name, once=once)
        return
    from autotune.cluster.agent import Agent
    from autotune.cluster.dask_agent import serve
    from autotune.cluster.dask_cluster import address_of, is_open, quiet

    address = address_of(cluster)
    _warn(address, is_open)
    quiet()
    called = name or f"{socket.gethostname()}-{'compilers' if compile_only else device or 'default'}"
    served: Agent | CompilingAgent
    if compile_only:
        served = _compiling(called, device, cores)
    else:
        folder = cache_folder() / "agents" / re.sub(r"[^\w.-]+|^\.{1,2}$", "_", called)[:80]
        served = Agent(called, folder, lambda: open_evaluator(device, cores), cores)
    try:
        with stopping_on_interrupt() as stopping:
            asyncio.run(serve(served, cluster, say=_say, stopping=stopping, once=once))
    finally:
        served.close()
    if served.retired:
        raise AutotuneError(served.retired)


def _compiling(name: str, device: str | None, cores: int) -> CompilingAgent:
    """An agent that compiles for CUDA devices, or for the null device, which is one to try it out.

    Raises ToolchainError without nvcc, StudyError for another device.
    """
    from autotune.cluster.agent import CompilingAgent

    kind, _, options = (device or "cuda").partition(":")
    if kind == "null":
        null = NullEvaluator(options)
        toolchain = (kind, null.environment.toolkit, null.environment.flags)
        return CompilingAgent(name, cores, toolchain, lambda source, _: null.compile(source), null.close)
    if kind != "cuda":
        raise StudyError(f"--compile-only: compiles for cuda (or null); kernels of {kind} are compiled where they run")
    toolchain = (kind, compiler_version(find_nvcc()), " ".join(NVCC_FLAGS))
    pool = CompilePool(cores, binary_cache())
    return CompilingAgent(
        name, cores, toolchain, lambda source, arch: pool.submit(source.program, Target(kind, arch)), pool.close
    )


def _one_each(cluster: str, names: Sequence[str], cores: int, name: str | None, *, once: bool) -> None:
    """An agent in a process of its own for each device: the search of each has an interpreter for itself."""
    started = []
    try:
        for each in names:
            words = ["--device", each, "--compilers", str(cores)]
            words += ["--name", f"{name}-{each}"] if name else []
            words += ["--once"] if once else []
            started.append(subprocess.Popen([sys.executable, "-m", "autotune", "agent", cluster, *words]))
        codes = [process.wait() for process in started]
    finally:
        for process in started:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
    if any(codes):
        raise AutotuneError(f"{sum(map(bool, codes))} of {len(names)} agents ended with a failure")


def tune_on_cluster(
    study: Study,
    layers: Sequence[Layer],
    directories: Sequence[Path],
    cluster: str,
    classes: Sequence[str],
    db: str,
    style: str | None,
    *,
    device: str | None,
    jobs: int | None,
    fresh: bool,
    finals: FinalsPlan,
) -> None:
    """Coordinate agents and print what came of it, class by class. Raises AutotuneError for what was not tuned."""
    _require_distributed()
    _refuse(study, cluster, device, jobs)
    from autotune.cluster.ledger import Ledger
    from autotune.store import Store
    from autotune.tuning.tune import check_study

    families = load_templates(directories, operations_of(study))
    check_study(study, families)
    with (
        Store(writable(db)) as store,
        stopping_on_interrupt() as stopping,
        ExitStack() as locks,
        cluster_observer() as observe,
    ):
        ledger = Ledger(store, study, families, layers, finals, fresh=fresh)

        waited: set[str] = set()

        def lock(device_class: DeviceClass) -> None:
            try:
                locks.enter_context(its_turn(store, study, device_class.info, _give_up))
            except BlockingIOError:
                if device_class.label not in waited:
                    waited.add(device_class.label)
                    words = f"another process is tuning it into {store.path}; waiting for it to end"
                    _say(f"{study.name} on {device_class.name}: {words}")
                raise

        found, lacking = asyncio.run(_coordinated(ledger, cluster, classes, device, jobs, lock, observe, stopping))
        _show(store, study, found, style)
        if stopping():
            results = [result for each in found for result in each.results]
            end_interrupted(left(study, layers, results, "tuned"))
    _complain(study, found, lacking)


def _give_up() -> None:
    """Wait for no other process here: the coordinator asks again."""
    raise BlockingIOError


async def _coordinated(
    ledger: Ledger,
    cluster: str,
    classes: Sequence[str],
    device: str | None,
    jobs: int | None,
    lock: Callable[[DeviceClass], None],
    observe: Callable[[Overview], None],
    stopping: Callable[[], bool],
) -> tuple[tuple[ClusterResult, ...], tuple[str, ...]]:
    """What came of it, and the devices that nobody had."""
    from autotune.cluster.coordinator import Coordinator
    from autotune.cluster.dask_cluster import address_of, is_open, quiet
    from autotune.cluster.started_cluster import places, started_cluster

    quiet()

    async def coordinate(
        address: str, stopping: Callable[[], bool]
    ) -> tuple[tuple[ClusterResult, ...], tuple[str, ...]]:
        made = Coordinator(ledger, address, wanted=classes, lock=lock, observe=observe, say=_say, stopping=stopping)
        return await made.run(), made.lacking

    where = places(cluster)
    if not where:
        _warn(address_of(cluster), is_open)
        return await coordinate(cluster, stopping)
    here = where[0].kind == "local"
    cores = jobs or (max(1, jobs_default() // len(where)) if here else None)
    devices = devices_of_agents(len(where), device) if here else [device] * len(where)

    def words(number: int) -> Sequence[str]:
        asked = devices[number]
        return [
            *(["--compilers", str(cores)] if cores else []),
            *(["--device", asked] if asked else []),
            *("--name", f"{where[number].kind}-{ledger.owner}-{number}"),
        ]

    async with started_cluster(where, words) as started:
        _warn(started.address, is_open)
        found = await coordinate(started.address, lambda: stopping() or bool(started.gone()))
        if (gone := started.gone()) and not stopping():
            raise AutotuneError(f"{cluster}: {gone}")
        return found


def _refuse(study: Study, cluster: str, device: str | None, jobs: int | None) -> None:
    """Raise StudyError for what has no meaning here."""
    from autotune.cluster.started_cluster import places

    if not places(cluster) and (device or jobs):
        raise StudyError(
            "--device and --jobs belong to `autotune agent`; with --cluster name devices by --device-class"
        )
    if study.trials_total is not None or study.time_budget_total_s is not None:
        raise StudyError(
            f"{study.name}: with --cluster each layer has its own budget; give --trials or --time-budget and leave out "
            f"budgets in total"
        )
    if study.end_to_end is not None:
        raise StudyError(f'{study.name}: span = "end_to_end" is not tuned on a cluster; tune it on one machine')


def _show(store: Store, study: Study, found: Sequence[ClusterResult], style: str | None) -> None:
    from autotune.api.tuning import best_of

    rows = []
    for each in found:
        for result in each.results:
            for line in summary(result):
                click.echo(line if line.startswith(" ") else f"{each.device_class.name}: {line}", err=True)
        rows += best_of(store, study, {result.name for result in each.results}, each.device_class.info)
    show_answers([answer(with_roofline(store, row)) for row in undominated(rows)], BEST_COLUMNS, style)


def _complain(study: Study, found: Sequence[ClusterResult], lacking: Sequence[str]) -> None:
    """Raise AutotuneError for what was not tuned."""
    words = [f"no agent had {word}" for word in lacking]
    for each in found:
        words += [f"{layer} on {each.device_class.name}: {why}" for layer, why in each.failed.items()]
        words += [
            f"no correct kernel of {result.layer.name} on {each.device_class.name} ({shortened(result.why_not, 160)})"
            for result in each.results
            if result.best is None
        ]
    if words:
        raise AutotuneError(f"{study.name}: {'; '.join(words)}")


def _warn(address: str, is_open: Callable[[str], bool]) -> None:
    if is_open(address):
        _say(f"note: {address} is not encrypted, and whoever reaches it can run code; docs/cluster.md has TLS")


def _say(words: str) -> None:
    click.echo(words, err=True)


def _require_distributed() -> None:
    """Raise ToolchainError without Dask."""
    if importlib.util.find_spec("distributed") is None:
        raise ToolchainError("Dask is not installed, which clusters need: pip install 'autotune-conv[cluster]'")
