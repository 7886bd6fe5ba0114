"""The tables, for statements: each is declared as a class in one of the modules imported here."""

from typing import cast

from sqlalchemy import Table

from autotune.store.schema.base import Base
from autotune.store.schema.dispatcher_tables import DispatchedLayer, Dispatcher
from autotune.store.schema.machine_tables import Device, Environment, NoiseFloor, Rate, Run
from autotune.store.schema.study_tables import Layer, SchemaVersion, Study, StudyLayer, TuningTarget, TuningTargetLayer
from autotune.store.schema.timing_tables import EndToEndTiming, Finals, Measurement, Profile, Retime, Verdict
from autotune.store.schema.trial_tables import Paragraph, Quarantine, Source, SourceParagraph, Template, Trial


def _of(row: type[Base]) -> Table:
    return cast(Table, row.__table__)


metadata = Base.metadata
layers, tuning_targets, tuning_target_layers = _of(Layer), _of(TuningTarget), _of(TuningTargetLayer)
studies, study_layers = _of(Study), _of(StudyLayer)
devices, environments, runs = _of(Device), _of(Environment), _of(Run)
templates, sources, paragraphs, source_paragraphs = _of(Template), _of(Source), _of(Paragraph), _of(SourceParagraph)
trials, measurements, retimes, profiles = _of(Trial), _of(Measurement), _of(Retime), _of(Profile)
finals, verdicts, end_to_end_timings = _of(Finals), _of(Verdict), _of(EndToEndTiming)
quarantine, noise_floors, rates = _of(Quarantine), _of(NoiseFloor), _of(Rate)
dispatchers, dispatched_layers, schema_versions = _of(Dispatcher), _of(DispatchedLayer), _of(SchemaVersion)
