"""Families, kernels, and trials."""

from datetime import datetime

from sqlalchemy import CheckConstraint, ForeignKey, Index, UniqueConstraint, text
from sqlalchemy.orm import Mapped, mapped_column

from autotune.store.schema.base import CLASSES, ORIGIN, Base, Id, is_date, is_json, is_measured, is_one_of, table
from autotune.trial import Outcome


class Template(Base):
    __tablename__ = "templates"
    __table_args__ = table(
        is_date("first_seen_at"),
        UniqueConstraint("family", "hash"),
        comment="A kernel family as it was when trials were made with it.",
    )
    id: Mapped[Id]
    family: Mapped[str]
    hash: Mapped[str] = mapped_column(comment="of its text and of what it includes")
    header: Mapped[str]
    first_seen_at: Mapped[datetime]


class Source(Base):
    __tablename__ = "sources"
    __table_args__ = table(
        CheckConstraint("deterministic IN (0, 1)"),
        is_one_of("accuracy", CLASSES),
        *(is_json(name, kind) for name, kind in (("entries", "array"), ("flags", "array"), ("launches", "object"))),
        comment="Every rendered kernel that was compiled. The view `kernels` has its text.",
    )
    id: Mapped[Id]
    hash: Mapped[str] = mapped_column(comment="its identity, of text, flags, launches and problem", unique=True)
    layer_id: Mapped[int] = mapped_column(ForeignKey("layers.id"))
    entries: Mapped[tuple[str, ...]] = mapped_column(comment="JSON array, kernel names")
    flags: Mapped[tuple[str, ...]] = mapped_column(comment="JSON array, compiler flags of its own")
    launches: Mapped[str] = mapped_column(
        comment="JSON object: prepare, stages, constants ...; {} where only the hash is kept"
    )
    accuracy: Mapped[str]
    deterministic: Mapped[bool]


class Paragraph(Base):
    __tablename__ = "paragraphs"
    __table_args__ = table(comment="What kernels' texts are made of; kernels share most of it.")
    id: Mapped[Id] = mapped_column(comment="the first 63 bits of the text's SHA-256")
    text: Mapped[str] = mapped_column(comment="the text between two blank lines")


class SourceParagraph(Base):
    __tablename__ = "source_paragraphs"
    __table_args__ = table(comment="A kernel's text: its paragraphs in order.", rowid=False)
    source_id: Mapped[int] = mapped_column(ForeignKey("sources.id"), primary_key=True)
    position: Mapped[int] = mapped_column(primary_key=True)
    paragraph_id: Mapped[int] = mapped_column(ForeignKey("paragraphs.id"))


class Trial(Base):
    __tablename__ = "trials"
    __table_args__ = table(
        is_date("started_at", "ended_at"),
        UniqueConstraint("study_id", "tuning_target_id", "device_id", "environment_id", "measurement_mode", "number"),
        Index("trials_outcome", "study_id", "tuning_target_id", "outcome"),
        Index("trials_identity", "source_id", "device_id", "environment_id", "measurement_mode"),
        Index(
            "trials_best",
            *("tuning_target_id", "device_id", "accuracy", "deterministic", "measurement_mode", "ranking_median_us"),
            sqlite_where=text("ranking_median_us IS NOT NULL"),
        ),
        is_json("config"),
        is_one_of("outcome", tuple(Outcome)),
        is_one_of("accuracy", CLASSES),
        is_one_of("origin", ("measured", "imported")),
        CheckConstraint("deterministic IN (0, 1)"),
        CheckConstraint("(outcome = 'running') = (ended_at IS NULL)"),
        CheckConstraint("outcome = 'correct' OR median_us IS NULL AND ranking_median_us IS NULL"),
        is_measured("median_us"),
        is_measured("ranking_median_us"),
        comment="One config and what became of it.",
    )
    id: Mapped[Id]
    study_id: Mapped[int] = mapped_column(ForeignKey("studies.id"))
    tuning_target_id: Mapped[int] = mapped_column(ForeignKey("tuning_targets.id"))
    device_id: Mapped[int] = mapped_column(ForeignKey("devices.id"))
    environment_id: Mapped[int] = mapped_column(ForeignKey("environments.id"))
    measurement_mode: Mapped[str] = mapped_column(comment="how it was measured: cold, hot or end_to_end")
    number: Mapped[int] = mapped_column(comment="position in its history, from 0")
    run_id: Mapped[int] = mapped_column(ForeignKey("runs.id"))
    template_id: Mapped[int] = mapped_column(ForeignKey("templates.id"))
    config: Mapped[str] = mapped_column(comment="JSON object, parameter to value")
    source_id: Mapped[int | None] = mapped_column(
        ForeignKey("sources.id"), comment="NULL when rejected before rendering"
    )
    reused_trial_id: Mapped[int | None] = mapped_column(
        ForeignKey("trials.id"), comment="the trial whose result this one took over, else NULL"
    )
    attempts: Mapped[int] = mapped_column(comment="how often it was begun")
    outcome: Mapped[str]
    reason: Mapped[str] = mapped_column(comment="a word beneath the outcome")
    message: Mapped[str] = mapped_column(comment="the compiler's, driver's or checker's own words")
    accuracy: Mapped[str] = mapped_column(
        comment="what the arithmetic promises, such as fp32; empty when rejected before rendering"
    )
    deterministic: Mapped[bool]
    registers: Mapped[int | None] = mapped_column(
        comment="a thread; this and the next three are NULL where no compiler reported them"
    )
    spill_bytes: Mapped[int | None]
    static_smem_bytes: Mapped[int | None]
    constant_bytes: Mapped[int | None]
    smem_bytes: Mapped[int] = mapped_column(comment="shared memory a block, static and dynamic")
    occupancy: Mapped[float | None] = mapped_column(comment="theoretical, 0 to 1")
    error_over_bound: Mapped[float | None] = mapped_column(
        comment="at most 1 when correct; NULL when not verified or not a number"
    )
    error_max_abs: Mapped[float | None]
    median_us: Mapped[float | None] = mapped_column(comment="of its measurement, correct trials only")
    ranking_median_us: Mapped[float | None] = mapped_column(
        comment="median of its latest measurement here, by which `best` ranks it; NULL for what does not count: "
        "imported and never re-timed, failed when re-timed, a copy, or another trial of its kernel was re-timed since"
    )
    render_us: Mapped[float] = mapped_column(comment="wall clock of its phases")
    compile_us: Mapped[float]
    load_us: Mapped[float]
    verify_us: Mapped[float]
    measure_us: Mapped[float]
    started_at: Mapped[datetime]
    ended_at: Mapped[datetime | None] = mapped_column(comment="NULL while running")
    origin: Mapped[str] = mapped_column(comment=ORIGIN, server_default="measured")
    proposed_by: Mapped[str] = mapped_column(
        comment="what asked for it: search, default, warm_start ...", server_default="search"
    )


class Quarantine(Base):
    __tablename__ = "quarantine"
    __table_args__ = table(
        is_date("created_at"),
        UniqueConstraint("device_id", "environment_id", "source_id"),
        comment="Kernels that took down two runs, never to be launched again on this device in this environment.",
    )
    id: Mapped[Id]
    device_id: Mapped[int] = mapped_column(ForeignKey("devices.id"))
    environment_id: Mapped[int] = mapped_column(ForeignKey("environments.id"))
    source_id: Mapped[int] = mapped_column(ForeignKey("sources.id"))
    reason: Mapped[str]
    message: Mapped[str]
    created_at: Mapped[datetime]
