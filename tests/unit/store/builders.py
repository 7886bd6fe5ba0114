"""Small records for the store's tests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from autotune.compilation.compile import Program
from autotune.devices.device import DeviceInfo, Environment
from autotune.devices.tensor_map import TensorMap
from autotune.dispatch.dispatcher import DEFAULT, FAMILY, Dispatcher, PortfolioKernel, Property, Split
from autotune.dispatch.predicate import Predicate, Step
from autotune.family.source import ConstantSymbol, KernelSource, Stage
from autotune.family.tensor_map_template import NamedTensorMap
from autotune.problem import Conv2dProblem, Layer
from autotune.store import DispatchedLayer, Scope, Store, TemplateRecord, TrialKey
from autotune.study import Study
from autotune.trial import (
    END_TO_END,
    Config,
    EndToEndParts,
    ErrorStats,
    KernelProfile,
    Outcome,
    Phases,
    Resources,
    Timing,
    Trial,
)

CONV1 = Layer("conv1", Conv2dProblem(n=100, c=1, h=70, w=70, k=12, r=5, s=5), count=2)
CONV2 = Layer("conv2", Conv2dProblem(n=100, c=12, h=33, w=33, k=24, r=5, s=5, epilogue="bias_relu"))
H200 = DeviceInfo("cuda", "NVIDIA H200", 90, 132, 150_000_000_000, l2_bytes=62_914_560)
HOST = DeviceInfo("host", "AMD EPYC", 90, 2, 8_000_000_000)
DRIVER_580 = Environment("580.159", "nvcc 13.0.88", "-O3", {"uuid": "GPU-1", "host": "a"})
DRIVER_590 = Environment("590.10", "nvcc 13.0.88", "-O3", {"uuid": "GPU-1"})
DIRECT = TemplateRecord("direct", "ab" * 32, 'summary = "Direct convolution"')
GEMM = TemplateRecord("implicit_gemm", "cd" * 32, 'summary = "Implicit GEMM"')


def study_of(name: str = "lenet", layers: Sequence[Layer] = (CONV1, CONV2), seed: int = 0) -> Study:
    return Study(name, tuple(layers), text=f'name = "{name}"\n', seed=seed)


def open_scope(
    store: Store,
    *,
    study: str = "lenet",
    layer: Layer = CONV1,
    device: DeviceInfo = H200,
    environment: Environment = DRIVER_580,
    measurement_mode: str = "cold",
    fresh: bool = False,
) -> Scope:
    """Begin or resume a study of both layers and open the scope of one."""
    layers = (CONV1, CONV2) if layer in (CONV1, CONV2) else (layer,)
    key = store.studies.begin(study_of(study, layers), fresh=fresh)
    return store.scopes.open(key, layer, device, environment, measurement_mode, [DIRECT, GEMM])


def config_of(number: int, family: str = "direct") -> Config:
    return Config.of(family, {"block_p": number, "filters": "constant", "vector": number % 2 == 0})


def source_of(config: Config, layer: Layer = CONV1, text: str | None = None) -> KernelSource:
    """Each config has its own kernel, unless a text is given."""
    stage = Stage("conv2d_fwd", ("x", "w", "y", "n"), (32, 4, 1), (7, 3, layer.problem.runtime_size), 4096)
    return KernelSource(
        problem=layer.problem,
        config=config,
        program=Program(text or f"// {config}\n" + "float a = 0.0f;\n" * 50, ("conv2d_fwd",), ("-use_fast_math",)),
        prepare=(Stage("pack", ("w", "packed_w"), (128, 1, 1), (1, 1, 1), 0),),
        stages=(stage,),
        loop_count=1,
        constants=(ConstantSymbol("w_const", "w"),),
        packed_w_bytes=1200,
        workspace_bytes=0,
        accuracy="fp32",
        deterministic=True,
        tensor_maps=(
            NamedTensorMap(
                "x_map", "x", TensorMap("f16", (64, 9, 7, 2), (64, 96), (1, 2, 1, 1), 128, (-1, 0), (-1, -2))
            ),
        ),
    )


def timing_of(median_us: float, cache: str = "cold") -> Timing:
    samples = tuple(float(f"{median_us * part:.7g}") for part in (1.1, 1.0, 0.9))
    return Timing(samples, median_us, median_us * 0.95, median_us * 1.05, cache)


def correct(
    number: int,
    median_us: float,
    *,
    accuracy: str = "fp32",
    deterministic: bool = True,
    source: KernelSource | None = None,
    family: str = "direct",
) -> Trial:
    return Trial(
        number=number,
        config=config_of(number, family),
        outcome=Outcome.CORRECT,
        source_hash=source.hash if source else None,
        accuracy=accuracy,
        deterministic=deterministic,
        resources=Resources(64, 0, 1024, 1200),
        smem_bytes=5120,
        occupancy=0.5,
        timing=timing_of(median_us),
        error=ErrorStats(0.25, 1e-6),
        phases=Phases(1.0, 300_000.0, 20.0, 5_000.0, 9_000.0),
    )


def failed(number: int, outcome: Outcome = Outcome.COMPILE, message: str = "ptxas error") -> Trial:
    return Trial(number=number, config=config_of(number), outcome=outcome, reason="why", message=message)


def run_trial(store: Store, scope: Scope, trial: Trial, source: KernelSource | None = None) -> None:
    """Begin and end a trial as the tuner does."""
    store.trials.end(store.trials.begin(scope, trial.number, trial.config, source), trial)


DISPATCH_FAMILY = TemplateRecord(FAMILY, "ef" * 32, 'summary = "Which kernel serves a layer"')


def dispatcher_of(threshold: int = 17) -> Dispatcher:
    """Layers with few output channels use the first kernel, others the default."""
    serves = Predicate((Step("k % 4 == 0", reason="maps come in fours"),))
    return Dispatcher(
        properties=(Property("k", "k", 6, 48),),
        kernels=(PortfolioKernel("direct_1", config_of(1), serves),),
        default=PortfolioKernel(DEFAULT, config_of(0), Predicate(())),
        rule=Split("k", threshold, "direct_1", DEFAULT),
    )


def dispatched(layer: Layer, kernel: str | None = "direct_1", **changed: float | None) -> DispatchedLayer:
    """A layer that a dispatcher computes in 12 us, whose best kernel takes 10."""
    plain = DispatchedLayer(
        layer, "tuned", kernel, kernel is None, 12.0 if kernel else None, 10.0, 12.5, 40.0, 15.0, None
    )
    return replace(plain, **changed)  # type: ignore[arg-type]  # a field and its value


def add_dispatcher(store: Store, rows: Sequence[DispatchedLayer], number: int = 0) -> Dispatcher:
    """Build a dispatcher of both layers."""
    made = dispatcher_of()
    key = store.studies.begin(study_of())
    scope = store.scopes.open_set(key, [row.layer for row in rows], H200, DRIVER_580, "cold", DISPATCH_FAMILY)
    if made.config() not in store.dispatchers.trials(scope):
        store.dispatchers.add_trial(scope, Trial(number, made.config(), Outcome.CORRECT), 36.0)
    store.dispatchers.add(scope, number, made.to_json(), rows)
    return made


END_TO_END_FAMILY = TemplateRecord(END_TO_END, "", "")
PROFILE = KernelProfile(
    "ncu 2025.3.1",
    0,
    "conv2d_fwd",
    time_us=27.5,
    achieved_occupancy=0.46,
    load_efficiency_fraction=0.97,
    dram_read_bytes=1e6,
    dram_written_bytes=2e6,
    l1_hit_fraction=0.5,
    l2_hit_fraction=0.75,
    sm_throughput_fraction=0.7,
    memory_throughput_fraction=0.8,
    issue_fraction=0.3,
    active_threads=31.5,
    shared_load_wavefronts=4e5,
    stalls=(("long_scoreboard", 3.5), ("barrier", 0.25)),
)


def add_end_to_end(store: Store, number: int, median_us: float, hidden_fraction: float | None = 0.5) -> TrialKey:
    """An end-to-end trial of the first layer."""
    key = store.studies.begin(study_of())
    scope = store.scopes.open(key, CONV1, H200, DRIVER_580, END_TO_END, [END_TO_END_FAMILY])
    config = Config.of(END_TO_END, {"streams": 2, "segments": 4 + number, "pinned": "yes"})
    source = source_of(config_of(0))
    trial_key = store.trials.begin(scope, number, config, source)
    trial = replace(correct(number, median_us, source=source), config=config)
    store.trials.end(
        trial_key, trial, EndToEndParts(400.0, 27.5, 2100.0, hidden_fraction, 90_000.0, 2_000_000, 4 + number)
    )
    return trial_key


def ticking(start: datetime = datetime(2026, 11, 20, tzinfo=UTC)) -> Callable[[], datetime]:
    """A clock that advances by a second at every reading."""
    now = start

    def clock() -> datetime:
        nonlocal now
        now += timedelta(seconds=1)
        return now

    return clock


def written(path: Path) -> None:
    """Open a database for writing, which creates the file or migrates it."""
    Store(path, clock=ticking()).close()
