"""`--json` for programs: docs/schema.json and its rules. The answers of every test are validated against it."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path

import click
import pytest

from autotune.cli import cli
from autotune.resources import shipped
from autotune.store import Store
from tests import json_schema

from .conftest import assert_as_documented
from .tiny import Command

DOCS = Path(__file__).parents[2] / "docs"
RECORDED = shipped("studies") / "recorded" / "h200.db"


def test_the_schema_of_the_docs_is_what_the_commands_have() -> None:
    assert (DOCS / "schema.json").read_text() == json_schema.text(), "python -m tests.json_schema > docs/schema.json"


def test_every_command_with_json_is_in_it_and_its_kinds_are_told() -> None:
    loaded = click.Context(cli)
    commands = [cli.get_command(loaded, name) for name in cli.list_commands(loaded)]
    has_json = {each.name for each in commands if each and any("--json" in one.opts for one in each.params)}
    assert has_json == {command.partition(",")[0].split()[0] for command in json_schema.COMMANDS} | {"query"}
    page = (DOCS / "json.md").read_text()
    assert [name for name in json_schema.KINDS if f"| `{name}` |" not in page] == []


@pytest.mark.parametrize(
    "words",
    [
        *("best lenet-k5", "trials lenet-k5.conv1 --limit 30", "show lenet-k5.conv1 3"),
        *("why lenet-k5.conv1", "history lenet-k5", "diff lenet-k5 lenet-k7", "importance lenet-k5.conv1"),
        *("ladder reports/003 --stored",),
    ],
)
def test_recorded_answers_are_as_documented(words: str, autotune: Command) -> None:
    pytest.importorskip("jsonschema")
    assert json.loads(autotune(*words.split(), "--db", RECORDED, "--json").out)  # which the command's fixture validates


def test_configs_dates_and_lists_are_what_they_are(autotune: Command) -> None:
    (row,) = json.loads(autotune("show", "lenet-k5.conv1", "142", "--db", RECORDED, "--json").out)
    with Store(RECORDED, create=False) as store:
        (found,) = [one for one in store.trials.list("lenet-k5.conv1", kind="cuda") if one.trial.number == 142]
    assert row["config"] == found.trial.config.params
    assert datetime.fromisoformat(row["date"]) == found.ended_at
    assert found.trial.timing is not None
    assert row["samples_us"] == list(found.trial.timing.samples_us)
    assert row["occupancy_limits"] == ["shared memory"]
    (words,) = autotune("show", "lenet-k5.conv1", "142", "--db", RECORDED, "--csv").out.splitlines()[1:]
    assert str(found.trial.config).removeprefix(f"{found.trial.config.template} ") in words


def test_what_is_not_as_documented_is_noticed() -> None:
    pytest.importorskip("jsonschema")
    row = dict.fromkeys(json_schema.keys("studies"), None) | {"study": "x", "trials": 3}
    assert_as_documented(["studies"], json.dumps([row]))
    for wrong in (row | {"trials": "3"}, row | {"more": 1}, {"study": "x"}):
        with pytest.raises(AssertionError, match=r"studies: \[0"):
            assert_as_documented(["studies"], json.dumps([wrong]))
