"""Layers, what trials tune, and studies."""

from datetime import datetime

from sqlalchemy import CheckConstraint, ForeignKey, Index, UniqueConstraint, text
from sqlalchemy.orm import Mapped, mapped_column

from autotune.store.schema.base import Base, Id, is_date, is_json, is_one_of, table


class SchemaVersion(Base):
    __tablename__ = "schema_versions"
    __table_args__ = table(comment="Which autotune brought this file to which schema.")
    version: Mapped[Id]
    autotune_version: Mapped[str]
    applied_at: Mapped[datetime] = mapped_column(comment="every date is ISO 8601, UTC")


class Layer(Base):
    __tablename__ = "layers"
    __table_args__ = table(
        UniqueConstraint("operation", "problem"),
        is_json("problem"),
        comment="The shape of a problem of an operation. Another run-time size, such as conv2d's n, is another row.",
    )
    id: Mapped[Id]
    n: Mapped[int | None] = mapped_column(
        comment="conv2d's sizes and words, for SQL; NULL where another operation has no such name"
    )
    c: Mapped[int | None]
    h: Mapped[int | None]
    w: Mapped[int | None]
    k: Mapped[int | None]
    r: Mapped[int | None]
    s: Mapped[int | None]
    stride_h: Mapped[int | None]
    stride_w: Mapped[int | None]
    pad_h: Mapped[int | None]
    pad_w: Mapped[int | None]
    dilation_h: Mapped[int | None]
    dilation_w: Mapped[int | None]
    groups: Mapped[int | None]
    dtype: Mapped[str | None]
    layout: Mapped[str | None]
    epilogue: Mapped[str | None]
    p: Mapped[int | None] = mapped_column(comment="output height")
    q: Mapped[int | None] = mapped_column(comment="output width")
    flops: Mapped[int] = mapped_column(comment="of the direct algorithm, a multiply-add counted as two")
    minimal_bytes: Mapped[int] = mapped_column(comment="inputs read once, outputs written once")
    operation: Mapped[str]
    problem: Mapped[str] = mapped_column(comment="JSON object of every size and word, keys sorted")
    declaration: Mapped[str | None] = mapped_column(
        comment="operation.toml of an operation that autotune does not ship, else NULL"
    )


class TuningTarget(Base):
    __tablename__ = "tuning_targets"
    __table_args__ = table(
        UniqueConstraint("name", "params"),
        is_one_of("kind", ("layer", "layers", "space")),
        CheckConstraint("(kind = 'layer') = (layer_id IS NOT NULL)"),
        CheckConstraint("(kind = 'space') = (name IS NOT NULL)"),
        CheckConstraint("(kind = 'space') = (params IS NOT NULL)"),
        is_json("params"),
        comment="What a trial tunes: a layer, a set of layers (a dispatcher), or a search space imported from a file.",
    )
    id: Mapped[Id]
    kind: Mapped[str]
    layer_id: Mapped[int | None] = mapped_column(ForeignKey("layers.id"), comment="of a layer, else NULL", unique=True)
    name: Mapped[str | None] = mapped_column(comment="of a space, its kernel's; else NULL")
    params: Mapped[str | None] = mapped_column(
        comment="of a space, JSON object, parameter to its values in order; else NULL"
    )


class TuningTargetLayer(Base):
    __tablename__ = "tuning_target_layers"
    __table_args__ = table(comment="The members of a set of layers.", rowid=False)
    tuning_target_id: Mapped[int] = mapped_column(ForeignKey("tuning_targets.id"), primary_key=True)
    layer_id: Mapped[int] = mapped_column(ForeignKey("layers.id"), primary_key=True)


class Study(Base):
    __tablename__ = "studies"
    __table_args__ = table(
        is_date("created_at"),
        UniqueConstraint("name", "generation"),
        CheckConstraint("fresh IN (0, 1)"),
        comment="One start of a study; `--fresh` begins a new generation under the same name.",
    )
    id: Mapped[Id]
    name: Mapped[str]
    generation: Mapped[int]
    seed: Mapped[int]
    text: Mapped[str] = mapped_column(comment="the study file, as last read")
    fresh: Mapped[bool] = mapped_column(comment="1: nothing measured before created_at is reused")
    created_at: Mapped[datetime]
    imported_from: Mapped[str | None] = mapped_column(comment="the file that it was merged from; NULL when begun here")
    fresh_after_trial_id: Mapped[int | None] = mapped_column(
        comment="of a fresh start, the newest trial then; NULL for any other"
    )


class StudyLayer(Base):
    __tablename__ = "study_layers"
    __table_args__ = table(
        Index("study_layers_current", "study_id", "name", unique=True, sqlite_where=text("position IS NOT NULL")),
        Index("study_layers_target", "tuning_target_id"),
        is_json("admitted", "array"),
        comment="The name of a tuning target in a study: study.layer on the command line.",
        rowid=False,
    )
    study_id: Mapped[int] = mapped_column(ForeignKey("studies.id"), primary_key=True)
    name: Mapped[str] = mapped_column(primary_key=True)
    tuning_target_id: Mapped[int] = mapped_column(ForeignKey("tuning_targets.id"), primary_key=True)
    count: Mapped[int] = mapped_column(comment="how often the network runs it")
    position: Mapped[int | None] = mapped_column(comment="its place in the study file; NULL when it is no longer there")
    admitted: Mapped[tuple[str, ...]] = mapped_column(
        comment="JSON array, the accuracy classes that may win the layer in this study"
    )
