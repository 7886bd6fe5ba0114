"""`worker` and `tune --cluster`: tune on the GPUs of many hosts."""

from __future__ import annotations

import asyncio
import importlib.util
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING

import click

from autotune.analysis.rooflines import with_roofline
from autotune.api.device_names import device_names
from autotune.cli.best import BEST_COLUMNS, show_best
from autotune.cli.output import note, silent
from autotune.cli.progress import PlainLines
from autotune.cli.run import end_interrupted, open_evaluator, stopping_on_interrupt
from autotune.cli.summary import left, summary
from autotune.devices.host_machine import usable_cores
from autotune.errors import AutotuneError, StudyError, ToolchainError, shortened
from autotune.study import Study

if TYPE_CHECKING:
    from autotune.api.run_plan import RunPlan
    from autotune.cluster.coordinator import ClusterResult, Overview
    from autotune.cluster.task import DeviceClass
    from autotune.store import Store

_LAUNCHERS = ("local", "ssh", "slurm")  # in earlier versions, before what `tune --cluster` should launch
CLUSTER = click.option(
    "--cluster",
    metavar="ADDRESS",
    help="Tune on the workers of a Dask scheduler: HOST:PORT, tls://HOST:PORT or a scheduler file.",
)
DEVICE_CLASS = click.option(
    "--device-class",
    "classes",
    multiple=True,
    metavar="NAME",
    help="With --cluster: only on devices of this name or kind; may be repeated. Default: all classes.",
)


@click.command()
@click.argument("cluster", metavar="ADDRESS")
@click.option(
    "--device", help="The device, as for `tune`. Each of several (all, or cuda:0,cuda:1) gets its own worker."
)
@click.option(
    "--compilers",
    type=click.IntRange(min=1),
    help="Number of parallel compilers; default: an equal share of the cores.",
)
@click.option("--name", help="Name of the worker; default: host and device.")
@click.option("--once", is_flag=True, help="Exit when the scheduler is lost; default: wait for a new one.")
def worker(cluster: str, device: str | None, compilers: int | None, name: str | None, *, once: bool) -> None:
    """Lend a device to the Dask scheduler at ADDRESS.

    ADDRESS is HOST:PORT, tls://HOST:PORT or a scheduler file. A worker doesn't need a database, because it sends its
    trials to `autotune tune STUDY --cluster ADDRESS`. If the scheduler restarts, the worker reconnects. Ctrl-C ends it
    after the current evaluation.
    """
    _require_distributed()
    from autotune.cluster.cluster_worker import OpenDevice, serve, worker_name
    from autotune.cluster.scheduler import address_of, is_open, quiet, worker_processes

    address = address_of(cluster)
    names = device_names(device) if device else []
    cores = compilers or max(1, usable_cores() // max(1, len(names)))
    label = name or worker_name(device)
    if len(names) > 1:
        arguments = [["--device", one, "--compilers", str(cores), "--name", f"{label}-{one}"] for one in names]
        with worker_processes(
            cluster, [[*options, *(["--once"] if once else [])] for options in arguments]
        ) as processes:
            codes = [process.wait() for process in processes]
        if any(codes):
            raise AutotuneError(f"{sum(map(bool, codes))} of {len(names)} workers ended with a failure")
        return
    _warn(address, is_open)
    quiet()
    with closing(OpenDevice(open_evaluator(device, cores))) as opened, stopping_on_interrupt() as stopping:
        asyncio.run(serve(opened, cluster, label, say=note, stopping=stopping, once=once))


def tune_on_cluster(
    plan: RunPlan,
    cluster: str,
    classes: Sequence[str],
    db: str,
    style: str | None,
    *,
    device: str | None,
    jobs: int | None,
) -> None:
    """Tune on workers and print the results for each device class.

    Raises AutotuneError if some layers weren't tuned.
    """
    _require_distributed()
    if cluster.partition(":")[0] in _LAUNCHERS:
        raise StudyError(
            f"{cluster}: start the workers with `autotune worker`, Dask's SSHCluster or dask-jobqueue, and give their "
            f"scheduler's address, as tcp://HOST:PORT; docs/cluster.md has all three"
        )
    study = plan.study
    _refuse(study, device, jobs)
    from autotune.api.run import acquire_study_lock
    from autotune.cluster.coordinator import Coordinator
    from autotune.cluster.layer_run import StudyRun
    from autotune.cluster.scheduler import address_of, is_open, quiet
    from autotune.store import Store

    _warn(address_of(cluster), is_open)
    quiet()
    with (
        Store(db) as store,
        stopping_on_interrupt() as stopping,
        ExitStack() as locks,
    ):
        observe = cluster_observer()
        run = StudyRun.begin(store, study, plan.families, plan.finals, fresh=plan.fresh)
        waited: set[str] = set()

        def lock(device_class: DeviceClass) -> None:
            try:
                locks.enter_context(acquire_study_lock(store, study, device_class.info, _give_up))
            except BlockingIOError:
                if device_class.label not in waited:
                    waited.add(device_class.label)
                    notice = f"another process is tuning it into {store.path}; waiting for it to end"
                    note(f"{study.name} on {device_class.info.name}: {notice}")
                raise

        coordinator = Coordinator(
            run, plan.layers, cluster, wanted=classes, lock=lock, observe=observe, say=note, stopping=stopping
        )
        results_by_class = asyncio.run(coordinator.run())
        _show(store, study, results_by_class, style)
        if stopping():
            results = [result for one in results_by_class for result in one.results]
            end_interrupted(left(study, plan.layers, results, "tuned"))
    _complain(study, results_by_class, coordinator.lacking)


def _give_up() -> None:
    """Raise BlockingIOError instead of waiting for another process, so that the coordinator tries again later."""
    raise BlockingIOError


def _refuse(study: Study, device: str | None, jobs: int | None) -> None:
    """Raise StudyError for settings that clusters don't support."""
    if device or jobs:
        raise StudyError(
            "--device and --jobs belong to `autotune worker`; with --cluster, choose devices with --device-class"
        )
    if study.trials_total is not None or study.time_budget_total_s is not None:
        raise StudyError(
            f"{study.name}: with --cluster each layer has its own budget; give --trials or --time-budget and leave out "
            f"budgets in total"
        )
    if study.end_to_end is not None:
        raise StudyError(f"{study.name}: end_to_end = true is not tuned on a cluster; tune it on one machine")


def _show(store: Store, study: Study, cluster_results: Sequence[ClusterResult], style: str | None) -> None:
    from autotune.api.tuning import best_of

    rows = []
    for of_class in cluster_results:
        for result in of_class.results:
            for line in summary(result):
                note(line if line.startswith(" ") else f"{of_class.device_class.info.name}: {line}")
        rows += best_of(store, study, {result.name for result in of_class.results}, of_class.device_class.info)
    show_best([with_roofline(store, row) for row in rows], BEST_COLUMNS, style)


def _complain(study: Study, cluster_results: Sequence[ClusterResult], lacking: Sequence[str]) -> None:
    """Raise AutotuneError if layers weren't tuned or devices had no worker."""
    problems = [f"no worker had {word}" for word in lacking]
    for of_class in cluster_results:
        problems += [f"{layer} on {of_class.device_class.info.name}: {why}" for layer, why in of_class.failed.items()]
        problems += [
            f"no correct kernel of {result.layer.name} on {of_class.device_class.info.name} "
            f"({shortened(result.why_not, 160)})"
            for result in of_class.results
            if result.best is None
        ]
    if problems:
        raise AutotuneError(f"{study.name}: {'; '.join(problems)}")


def _warn(address: str, is_open: Callable[[str], bool]) -> None:
    if is_open(address):
        note(
            f"note: {address} is not encrypted, and anyone who can reach it can run code; docs/cluster.md describes TLS"
        )


def _require_distributed() -> None:
    """Raise ToolchainError if Dask isn't installed."""
    if importlib.util.find_spec("distributed") is None:
        raise ToolchainError("Dask is not installed, which clusters need: pip install 'autotune-conv[cluster]'")


def cluster_observer() -> Callable[[Overview], None]:
    """Return an observer that prints the progress of all workers every few seconds.

    The dashboard shows what each worker is doing.
    """
    lines = PlainLines()

    def observe(overview: Overview) -> None:
        if overview.workers and not silent():
            rate = overview.trials / overview.elapsed_s if overview.elapsed_s else 0.0
            words = (
                f"{overview.done}/{overview.layers} layers in {overview.elapsed_s:.0f} s, {overview.trials} trials "
                f"({rate:.1f}/s), {overview.busy} of {overview.workers} workers busy"
            )
            lines.say("cluster", f"{words}; dashboard {overview.dashboard}", at_once=False)

    return observe
