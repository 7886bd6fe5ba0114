"""Results that were recorded under former names of parameters are read under the current names."""

from __future__ import annotations

from pathlib import Path

import pytest

from autotune.errors import StudyError
from autotune.family.render import launches
from autotune.family.space import BoundTemplate, narrow
from autotune.family.template_files import load_templates
from autotune.family.template_header import template_of_header
from autotune.legacy_names import PARAMETERS, current
from autotune.resources import shipped
from autotune.store import Store

DATA = Path(__file__).parents[2] / "data"
OLD: dict[str, int | str] = {
    "thread_k": 4,
    "thread_p": 2,
    "thread_q": 6,
    "bands": 1,
    "block_k": 1,
    "images": 1,
    "rounds": 3,
    "store": "bulk",
}
NEW = {{"bands": "row_tiles", "rounds": "tiles_per_thread"}.get(name, name): value for name, value in OLD.items()}


def test_no_name_is_both_an_old_and_a_new_one() -> None:
    families = load_templates()
    for family, names in PARAMETERS.items():
        assert not names.keys() & set(names.values()), family
        assert len(set(names.values())) == len(names), family
        if family in families:
            params = {param.name for param in families[family].params}
            assert set(names.values()) <= params, family
            assert not names.keys() & params, family


@pytest.mark.parametrize("file", [shipped("studies") / "recorded" / "h200.db", DATA / "databases" / "report-layers.db"])
def test_every_recorded_config_is_one_of_today(file: Path) -> None:
    families = load_templates()
    with Store(file, create=False) as store:
        for row in store.trials.list(generations="all"):
            config = row.trial.config
            if config.template not in (
                "dispatch",
                "end_to_end",
                "split_c",
            ):  # a family that never existed, and one that was removed
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


def test_a_study_with_an_old_name_is_told_the_new_one() -> None:
    family = load_templates()["image_direct"]
    with pytest.raises(StudyError, match=r"^space\.image_direct\.bands: no such parameter; it is row_tiles now$"):
        narrow(family, {"bands": (1,)})
    assert narrow(family, current("image_direct", {"bands": (1,)}))
