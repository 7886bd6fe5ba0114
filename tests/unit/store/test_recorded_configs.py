"""Recorded configs and headers are read as those of today."""

from __future__ import annotations

from pathlib import Path

import pytest

from autotune.family.render import launches
from autotune.family.space import BoundTemplate
from autotune.family.template_files import load_templates
from autotune.family.template_header import template_of_header
from autotune.resources import shipped
from autotune.store import Store

DATA = Path(__file__).parents[2] / "data"
GONE = {"dispatch", "end_to_end", "mma_shift", "split_c"}
"""Removed families, and two that never existed."""


@pytest.mark.parametrize("file", [shipped("studies") / "recorded" / "h200.db", DATA / "databases" / "report-layers.db"])
def test_every_recorded_config_is_one_of_today(file: Path) -> None:
    families = load_templates()
    with Store(file, create=False) as store:
        for row in store.trials.list(generations="all"):
            config = row.trial.config
            if config.template not in GONE:
                assert families[config.template].current_config(config) is not None, config


def test_headers_as_they_were_launch_what_was_recorded() -> None:
    """An export evaluates the header with which a kernel was rendered."""
    with Store(shipped("studies") / "recorded" / "h200.db", create=False) as store:
        best = store.best.list()
        for found in best:
            config = found.row.trial.config
            template = template_of_header(
                config.template,
                store.templates.header(config.template, found.row.template_hash),
                found.row.problem.operation,
            )
            bound = BoundTemplate(template, found.row.problem, found.row.device)
            source = store.sources.get(found.row.trial.source_hash or "")
            assert source is not None
            assert source.config == config
            assert launches(bound, template.stages, bound.names(config)) == source.stages, config
    assert len(best) >= 30
