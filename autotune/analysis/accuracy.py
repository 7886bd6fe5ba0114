"""Does a network on the tuned kernels predict what it predicts in float64? For each accuracy class in the store."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from autotune.errors import Rejected, StoreError, StudyError
from autotune.evaluation.evaluator import DeviceEvaluator
from autotune.family.source import KernelSource
from autotune.measurement.class_agreement import Agreement, NetworkRequest, NetworkSpec
from autotune.measurement.reference import reference_program
from autotune.problem import Conv2dProblem, Layer, of_conv2d
from autotune.store import BestRow, Store
from autotune.study import Study
from autotune.trial import ACCURACY_CLASSES

LEAST_AGREEMENT = 0.999  # of the images, for the classes that promise float32's accuracy
PROMISING = ("fp32", "fp32-3xtf32")
MOST_SHARE = 0.3  # of the images in one class, so that agreement means something
_FEW = 100  # images, below which chance alone fills a class


@dataclass(frozen=True, slots=True)
class AccuracyRow:
    """What became of the network with the kernels of one accuracy class."""

    accuracy: str
    kernels: tuple[BestRow, BestRow]
    """of the class, or of fp32 where the class has none for a layer"""
    agreement: Agreement | None
    failure: str = ""
    """why there is no agreement"""

    @property
    def passed(self) -> bool | None:
        """Whether the class keeps its promise; None for a class that promises no agreement."""
        if self.accuracy not in PROMISING:
            return None
        return self.agreement is not None and self.agreement.fraction >= LEAST_AGREEMENT


_WHAT = "a network's accuracy"


def chained(study: Study) -> tuple[Layer, Layer]:
    """The study's two layers, of conv2d. Raises StudyError when the second cannot follow the first's pooled output."""
    where = study.path or study.name
    problems = [of_conv2d(layer.problem, _WHAT) for layer in study.layers]
    if len(problems) != 2:
        raise StudyError(f"{where}: the network has two convolutions, the study {len(problems)} layer(s)")
    first, second = study.layers
    one, two = problems
    pooled = _pooled(one)
    if pooled != (two.c, two.h, two.w):
        channels, height, width = pooled
        raise StudyError(
            f"{where}: {second.name} cannot follow {first.name}: 2x2 pooling of its {one.p}x"
            f"{one.q} output leaves {channels} channels of {height}x{width}, but {second.name} takes "
            f"{two.c} of {two.h}x{two.w}"
        )
    if one.dtype != two.dtype:
        raise StudyError(
            f"{where}: {second.name} cannot follow {first.name}: it stores {two.dtype}, {first.name} {one.dtype}"
        )
    if 0 in _pooled(two):
        raise StudyError(f"{where}: pooling leaves nothing of {second.name}'s {two.p}x{two.q} output")
    return first, second


def _pooled(problem: Conv2dProblem) -> tuple[int, int, int]:
    return problem.k, problem.p // 2, problem.q // 2


def check_accuracy(
    study: Study, evaluator: DeviceEvaluator, store: Store, *, images: int, seed: int
) -> Iterator[AccuracyRow]:
    """Run the network on the best kernels of each accuracy class that this device has been tuned for.

    Raises StudyError when the layers do not chain or the network is no test, StoreError when nothing was tuned.
    """
    first, second = chained(study)
    best = [_fastest(f"{study.name}.{layer.name}", evaluator, store) for layer in (first, second)]
    classes = [name for name in ACCURACY_CLASSES if name in best[0] or name in best[1]]
    pairs = {name: tuple(rows.get(name) or rows.get("fp32") for rows in best) for name in classes}
    if not pairs:
        raise StoreError(
            f"{store.path}: no correct kernel of {study.name} on {evaluator.info.name}; "
            f"{store.best.advice(study.name, evaluator.info)}"
        )
    spec = NetworkSpec(of_conv2d(first.problem, _WHAT), of_conv2d(second.problem, _WHAT), images, seed)
    compiled = [evaluator.build(reference_program(problem)) for problem in (spec.first, spec.second)]
    references = (compiled[0].result(), compiled[1].result())
    for name, pair in pairs.items():
        one, two = pair
        if one is None or two is None:
            continue  # the other layer has neither this class nor fp32
        kernels = (_source(one, store), _source(two, store))
        try:
            built = [evaluator.compile(source) for source in kernels]
            request = NetworkRequest(
                spec, references, ((kernels[0], built[0].result()), (kernels[1], built[1].result()))
            )
            agreement = evaluator.agreement(request)
        except Rejected as rejected:
            yield AccuracyRow(name, (one, two), None, f"{rejected.reason}: {rejected.message}")
            continue
        if images >= _FEW and agreement.largest_share > MOST_SHARE:
            raise StudyError(
                f"{study.path or study.name}: {agreement.largest_share:.0%} of the images are in one class, more "
                f"than {MOST_SHARE:.0%}: agreement would mean little; give another --seed or more --images"
            )
        yield AccuracyRow(name, (one, two), agreement)


def _fastest(what: str, evaluator: DeviceEvaluator, store: Store) -> dict[str, BestRow]:
    """The fastest kernel of each accuracy class on this device; empty when the layer was never tuned."""
    found: dict[str, BestRow] = {}
    if what not in {row.name for row in store.studies.layers()}:
        return found
    for row in store.best.list(what, kind=evaluator.info.kind):
        accuracy = row.row.trial.accuracy
        if row.row.device.identity == evaluator.info.identity and (
            accuracy not in found or row.median_us < found[accuracy].median_us
        ):
            found[accuracy] = row
    return found


def _source(row: BestRow, store: Store) -> KernelSource:
    source = store.sources.get(row.row.trial.source_hash or "")
    if source is None:
        raise StoreError(f"{store.path}: the source of {row.name} is not in the database; tune it again")
    return source
