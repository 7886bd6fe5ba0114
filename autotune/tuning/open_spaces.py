"""a study's layer -> the search spaces of all families that support it."""

from __future__ import annotations

from collections.abc import Mapping

from autotune.devices.device import DeviceInfo
from autotune.errors import NoTemplate, StudyError
from autotune.family.space import Admission, BoundTemplate, SearchSpace, refusal
from autotune.family.template import KernelTemplate
from autotune.problem import Layer
from autotune.study import Study, unadmitted
from autotune.trial import Config

_SHOWN_REFUSALS = 3


def open_spaces(
    study: Study,
    layer: Layer,
    templates: Mapping[str, KernelTemplate],
    info: DeviceInfo,
    listed: frozenset[Config] | None = None,
) -> list[SearchSpace]:
    """Return the search spaces of all families that support a layer.

    With `listed`, the device can evaluate only these configs. A family whose `search_when` doesn't hold is left out,
    unless the study names it or no other family has a config. Raises StudyError if the layer doesn't fit into the
    device's memory, and NoTemplate with the reasons if no family supports it.
    """
    _check_memory(study, layer, info)
    admission = Admission(study.admitted(layer.problem), study.workspace_limit_bytes, listed, study.prune)
    spaces: list[SearchSpace] = []
    refusals = []
    declared = layer.problem.operation.name
    named = [name for name in study.templates or templates if templates[name].operation.name == declared]
    where = f"{study.shown}: layer {layer.name}"
    if not named:
        raise NoTemplate(f"{where}: none of the families computes {declared}")
    serving = []
    for name in named:
        bound = BoundTemplate(templates[name], layer.problem, info, admission)
        if bound.supported:
            serving.append(bound)
        else:
            refusals.append(f"{name} requires: {bound.unmet}")
    searched = [bound for bound in serving if bound.searched or study.templates]
    kept = study.space or {}
    for bounds in (searched, [bound for bound in serving if bound not in searched]):
        if not any(space.default for space in spaces):
            spaces += [SearchSpace(bound, kept.get(bound.template.name), seed=study.seed) for bound in bounds]
    if any(space.default for space in spaces):
        return spaces
    if why := unadmitted(study.accuracy, layer.problem.dtype):
        raise NoTemplate(f"{where}: {why}")
    empty = [
        f"{space.template} has no feasible config: {refusal(space.bound, space.params) or 'none is recorded'}"
        for space in spaces
    ]
    reasons = "; ".join([*empty, *refusals][:_SHOWN_REFUSALS])
    more = len(empty) + len(refusals) - _SHOWN_REFUSALS
    raise NoTemplate(
        f"{where} ({layer.problem}): no template supports it: {reasons}{f'; and {more} more' if more > 0 else ''}"
    )


def _check_memory(study: Study, layer: Layer, info: DeviceInfo) -> None:
    """Raise StudyError if two sets of a layer's test data don't fit into the device's memory."""
    problem = layer.problem
    needed, one, two = (2 * problem.with_runtime(n).tensor_bytes for n in (problem.runtime_size, 1, 2))
    if needed > info.memory_bytes:
        most = (info.memory_bytes - one) // (two - one) + 1
        runtime = problem.operation.leading
        advice = f"use {runtime} = {most}" if most > 0 else f"no {runtime} is small enough; make the layer smaller"
        raise StudyError(
            f"{study.shown}: layer {layer.name} ({problem}): verifying it takes {needed / 2**30:.4g} GiB "
            f"of memory, {info.name} has {info.memory_bytes / 2**30:.4g}; {advice}"
        )
