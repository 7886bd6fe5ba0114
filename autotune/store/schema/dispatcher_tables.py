"""Dispatchers."""

from datetime import datetime

from sqlalchemy import CheckConstraint, ForeignKey, Index, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from autotune.store.schema.base import Base, Id, is_date, is_json, is_one_of, table


class Dispatcher(Base):
    __tablename__ = "dispatchers"
    __table_args__ = table(
        is_date("built_at"),
        Index("dispatchers_trial", "trial_id"),
        is_json("record"),
        comment="A dispatcher as it was built. Its trial's tuning target is the set of layers that it was made from.",
    )
    id: Mapped[Id]
    trial_id: Mapped[int] = mapped_column(ForeignKey("trials.id"))
    record: Mapped[str] = mapped_column(comment="JSON object: properties, kernels with their conditions, default, rule")
    built_at: Mapped[datetime]


class DispatchedLayer(Base):
    __tablename__ = "dispatched_layers"
    __table_args__ = table(
        UniqueConstraint("dispatcher_id", "layer_id"),
        is_one_of("role", ("tuned", "held out")),
        CheckConstraint("default_first IN (0, 1)"),
        comment="What a dispatcher does with each layer, and with those that were held out of its making.",
    )
    id: Mapped[Id]
    dispatcher_id: Mapped[int] = mapped_column(ForeignKey("dispatchers.id"))
    layer_id: Mapped[int] = mapped_column(ForeignKey("layers.id"))
    name: Mapped[str]
    count: Mapped[int] = mapped_column(comment="how often the network runs it: its weight")
    role: Mapped[str]
    kernel: Mapped[str | None] = mapped_column(
        comment="name of the kernel that serves it; NULL when none fits, it is to be tuned"
    )
    default_first: Mapped[bool] = mapped_column(
        comment="1: the rule has no answer for it, the safe default comes first"
    )
    time_us: Mapped[float | None] = mapped_column(comment="of that kernel, NULL without one")
    best_us: Mapped[float] = mapped_column(comment="of the layer's own best kernel")
    left_out_us: Mapped[float | None] = mapped_column(
        comment="of what a dispatcher made without the layer chooses; NULL: nothing fits"
    )
    default_us: Mapped[float | None] = mapped_column(comment="of the safe default, NULL when it does not fit")
    single_us: Mapped[float | None] = mapped_column(comment="of the single kernel that is best over the other layers")
    nearest_us: Mapped[float | None] = mapped_column(comment="of the best kernel of the nearest layer")
