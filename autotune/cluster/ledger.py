"""The coordinator's side of the results database: leases are made of it, and what agents deliver goes into it."""

from __future__ import annotations

import hashlib
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from autotune.cluster.messages import HARMLESS, ID_BYTES, Collected, DeviceClass, Lease, LeaseEnd, named_by
from autotune.errors import StudyError
from autotune.family.template import KernelTemplate
from autotune.operation import FILE
from autotune.operations import CONV2D, operations
from autotune.problem import Layer, Problem
from autotune.shipped import shipped
from autotune.store import LOST, Delivery, Finals, Scope, Store, StudyRecord, TemplateRecord
from autotune.study import Study
from autotune.trial import Outcome
from autotune.tuning.layer_finals import FinalsPlan
from autotune.tuning.layer_result import LayerResult
from autotune.tuning.tune import check_study, policy, tuned_before


class Ledger:
    """One study in one database, tuned by agents. The only one who writes."""

    def __init__(
        self,
        store: Store,
        study: Study,
        families: Mapping[str, KernelTemplate],
        layers: Sequence[Layer],
        finals: FinalsPlan | None,
        *,
        fresh: bool = False,
        clock: Callable[[], int] = time.time_ns,
    ) -> None:
        """Begin or resume the study. Raises StudyError for one that names what does not exist."""
        check_study(study, families)
        self._store, self._study, self._families, self._finals, self._clock = store, study, families, finals, clock
        self._asked = tuple(layers)
        self._key = store.studies.begin(StudyRecord(study.name, study.seed, study.text, study.layers), fresh=fresh)
        begun = self._key.name, self._key.generation
        (row,) = (each for each in store.studies.list() if (each.name, each.generation) == begun)
        self.owner = hashlib.sha256(f"{row.name} {row.generation} {row.created_at}".encode()).hexdigest()[:16]
        """told by when its study began: a copy of the database goes on with what agents still have for it"""
        shapes: dict[Problem, Layer] = {}
        for layer in layers:  # a shape is tuned once, for all layers that have it
            first = shapes.setdefault(layer.problem, replace(layer, count=0))
            shapes[layer.problem] = replace(first, count=first.count + layer.count)
        self.layers = tuple(shapes.values())
        """of different shapes"""
        self._problems = frozenset(shapes)
        # What each lease and scope has of the families: a study may have a thousand layers.
        self._hashes = {name: family.hash for name, family in families.items()}
        self._files = _files(families)
        self._records = [TemplateRecord(each.name, self._hashes[each.name], each.header) for each in families.values()]
        self._scopes: dict[tuple[str, str], Scope] = {}
        self.trials = 0
        """new ones in this run"""

    def lease(self, device_class: DeviceClass, layer: Layer) -> Lease:
        """A lease of a layer, with what the database knows now."""
        store, scope, info = self._store, self.scope(device_class, layer), device_class.info
        history = [each for each in store.deliveries.list(scope) if not each.running and each.family in self._families]
        quarantined = store.quarantine.of(scope)
        held, numbers = store.finals.latest(scope), {each.trial["number"] for each in history}
        return Lease(
            id=secrets.token_hex(ID_BYTES),
            serial=self._clock(),
            owner=self.owner,
            device_class=device_class,
            study=replace(self._study, layers=(layer,), path=None, text=""),
            layer=layer,
            finals=self._finals,
            families=self._hashes,
            files=self._files,
            history=tuple(each.without_text for each in history),
            held=held if held and named_by(held) <= numbers else None,  # they may name families that the run lacks
            quarantined=tuple((row.source_hash, row.reason, row.message) for row in quarantined),
            rates=store.rates.list(info),
            tuned=tuned_before(self._study, layer, scope, store, info),
        )

    def scope(self, device_class: DeviceClass, layer: Layer) -> Scope:
        """Where the trials of a layer on a class of devices go."""
        at = device_class.label, layer.name
        if at not in self._scopes:
            device = device_class.info, device_class.environment
            self._scopes[at] = self._store.scopes.open(self._key, layer, *device, policy(self._study), self._records)
        return self._scopes[at]

    def store(self, arrived: Sequence[tuple[Lease, Collected]]) -> tuple[frozenset[int], ...]:
        """Store what agents have delivered, all in one commit; which deliveries of each they may forget.

        Of a line that has ended, what still ran counts as what took its agent down.
        """
        # What is not asked for now, a run with all layers takes.
        asked = [lease.layer.problem in self._problems for lease, _ in arrived]
        for _, collected in arrived:
            for each in collected.deliveries:
                if each.family not in self._families:
                    raise StudyError(f"{self._study.name}: an agent has trials of {each.family}; give its --templates")
        batch = [
            (self.scope(lease.device_class, lease.layer), collected.done)
            for (lease, collected), wanted in zip(arrived, asked, strict=True)
            if wanted and collected.done
        ]
        if batch:
            self.trials += self._store.deliveries.add(batch)
        for (lease, collected), wanted in zip(arrived, asked, strict=True):
            if wanted and not collected.live:
                self.lost(lease, collected.running)
            if wanted:
                self._quarantine(lease, [each for each in collected.done if each.trial["reason"] == LOST])
        return tuple(
            frozenset(each.id for each in (collected.done if collected.live else collected.deliveries) if wanted)
            for (_, collected), wanted in zip(arrived, asked, strict=True)
        )

    def lost(self, lease: Lease, running: Sequence[Delivery]) -> None:
        """An agent was lost while it ran these: they are kept from every other agent."""
        if lease.device_class.info.kind in HARMLESS or not running:
            return
        scope = self.scope(lease.device_class, lease.layer)
        message = "its agent was lost while it was running"
        ended = {"outcome": str(Outcome.RUNTIME), "reason": LOST, "message": message}
        trials = [
            replace(each, trial={**each.trial, **ended, "ended_at": each.trial["started_at"]}) for each in running
        ]
        self._store.deliveries.add([(scope, trials)])
        self._quarantine(lease, trials)

    def _quarantine(self, lease: Lease, lost: Sequence[Delivery]) -> None:
        """Keep kernels under which an agent, or one who helped it, was lost from every other."""
        scope = self.scope(lease.device_class, lease.layer)
        for each in lost:
            if each.source is not None:
                source_hash, message = str(each.source["hash"]), str(each.trial["message"])
                self._store.quarantine.add_unseen(scope, source_hash, LOST, message)

    def conclude(self, lease: Lease, end: LeaseEnd) -> LayerResult:
        """Store what the finals said; the layer's result, its trials numbered as they are in the database."""
        scope, store = self.scope(lease.device_class, lease.layer), self._store
        device, environment = lease.device_class.info, lease.device_class.environment
        best = end.result.best
        named = {*end.configs.values(), *([best.config] if best else [])}
        numbers = store.deliveries.numbers(scope, named)
        if end.finals is not None:
            here = {number: numbers[config] for number, config in end.configs.items()}
            store.finals.add(scope, _renumbered(end.finals, here))
            if end.result.finals is not None:
                noise = end.result.finals.noise
                store.noise_floors.add(
                    device, environment, scope.policy, noise * end.result.finals.timing.median_us, noise
                )
        for source_hash, message in end.disproved:
            row = store.known.get(scope, source_hash)
            if row is not None:
                store.retimes.add(row, device, environment, "failed", None, message)
        return replace(end.result, best=None if best is None else replace(best, number=numbers[best.config]))

    def results(self, found: Mapping[Problem, LayerResult]) -> tuple[LayerResult, ...]:
        """Of every layer that was asked for, those that share a shape with another too."""
        return tuple(
            found[layer.problem].of(self._study.name, layer) for layer in self._asked if layer.problem in found
        )


def _renumbered(finals: Finals, here: Mapping[int, int]) -> Finals:
    return Finals(
        winner=here[finals.winner],
        timings=tuple((here[number], timing) for number, timing in finals.timings),
        verdicts=tuple(
            each if each.against_number is None else replace(each, against_number=here[each.against_number])
            for each in finals.verdicts
        ),
    )


def _files(families: Mapping[str, KernelTemplate]) -> Mapping[str, str]:
    """Name and text of the user's own families, with what they include and their operations, as in a directory."""
    found: dict[str, str] = {}
    for family in families.values():
        if family.path.is_relative_to(shipped("templates")):
            continue
        declared = family.operation
        own = declared.name not in operations()
        declaration = [(FILE, declared.text), *declared.references] if own else []
        for name, text in ((family.path.name, family.text), *family.includes, *declaration):
            where = name if declared.name == CONV2D else f"{declared.name}/{name}"
            if found.setdefault(where, text) != text or "/" in name:
                raise StudyError(f"{family.path}: {name}: agents get one folder of files; give each a name of its own")
    return found
