"""Options that are the same in every command: shared options, names of studies, defaults, shell completion."""

from __future__ import annotations

import json
import pkgutil
import subprocess
import sys
from pathlib import Path

import click
import pytest

import autotune.cli
from autotune import tune as tune_in_python
from autotune.cli import cli
from autotune.errors import StoreError
from autotune.resources import recorded_database
from autotune.store import Store

from .tiny import Command

ASKING = {"best", "why", "source", "trials", "history", "importance", "export", "report"}
RUNNING = {"tune", "compare", "ladder", "dispatch", "profile", "check", "retime"}
OF_FILES = {"fit-model", "worker", "import-model", "new-op", "templates"}
"""Commands that read no database, or take databases as arguments."""


def options(name: str) -> dict[str, click.Option]:
    """The commands that have an option, with it."""
    loaded = click.Context(cli)
    return {
        command: param
        for command in cli.list_commands(loaded)
        for param in getattr(cli.get_command(loaded, command), "params", ())
        if isinstance(param, click.Option) and name in param.opts
    }


def test_a_command_is_loaded_without_the_others() -> None:
    code = "import sys; from autotune.cli import cli; cli.get_command(None, 'why'); print(*sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    own = {each.name for each in pkgutil.iter_modules(autotune.cli.__path__, "autotune.cli.")}
    loaded = own & set(run.stdout.split())
    assert "autotune.cli.why" in loaded
    assert not loaded & {f"autotune.cli.{name}" for name in ("tune", "export", "importance", "dispatch", "cluster")}


def test_an_option_means_one_thing_in_all_commands() -> None:
    for name in ("--db", "--family", "--layer", "--family-dir", "--study"):
        said = {option.help for option in options(name).values()}
        assert len(said) == 1, (name, said)
    devices = {command: option.help or "" for command, option in options("--device").items()}
    assert {
        command for command, words in devices.items() if words.startswith("Only results of this device: ")
    } == ASKING
    assert {command for command, words in devices.items() if words.startswith("Run on this device: ")} == RUNNING


def test_a_device_is_named_wherever_results_are_asked_for() -> None:
    assert {"trials", "history"} <= set(options("--accuracy")) & set(options("--layer")) & set(options("--family"))
    assert set(options("--db")) >= set(cli.list_commands(click.Context(cli))) - OF_FILES


def test_help_groups_every_command_in_80_columns(autotune: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    lines = autotune("--help").out.splitlines()
    assert max(map(len, lines)) <= 80
    headings = [line.removesuffix(":") for line in lines if line.endswith(":") and not line.startswith(" ")]
    assert headings == ["Options", "Tune", "Inspect", "Export", "Maintain"]
    named = [line.split()[0] for line in lines[lines.index("Tune:") :] if line.startswith("  ") and line[2] != " "]
    assert sorted(named) == sorted(cli.list_commands(click.Context(cli)))
    assert [line for line in lines[lines.index("Tune:") :] if line.endswith("...")] == [], (
        "a first sentence is longer than its line"
    )


def test_trials_and_history_of_what_is_asked_for_alone(filled: Path, autotune: Command) -> None:
    whole = json.loads(autotune("trials", "small", "--json").out)
    of_one = json.loads(autotune("trials", "--layer", "one", "--device", "null", "--json").out)
    assert of_one == [row for row in whole if row["layer"] == "small.one"] != []
    assert len(json.loads(autotune("trials", "--layer", "one", "--limit", 3, "--json").out)) == 3
    assert json.loads(autotune("trials", "--family", "direct", "--json").out) == []
    events = json.loads(autotune("history", "small", "--family", "tiny", "--json").out)
    assert events == json.loads(autotune("history", "small", "--json").out) != []
    assert json.loads(autotune("history", "small", "--layer", "two", "--json").out) == []
    refused = autotune("trials", "--device", "H200").complaint
    assert refused == "H200: no recorded device of this name; there are null; or give cuda:N, host or null"


def test_a_study_that_the_database_knows_stands_for_its_file(filled: Path, tune: Command, autotune: Command) -> None:
    (filled.parent / "small.toml").rename(filled.parent / "moved.toml")
    words = ("--family-dir", "families", "--device", "null", "--trials", 11)
    again = autotune("tune", "small", *words)
    assert again.code == 0, again.err
    assert "small.one: 11 evaluated" in again.err
    assert autotune("tune", "smal", *words).complaint.startswith("smal: no such study file or bundled study")
    listed = {row["study"]: row for row in json.loads(autotune("studies", "--json").out)}
    assert listed["small"]["origin"] == "autotune.db"
    assert listed["small"]["layer_count"] == 1
    assert listed["reports/000"]["origin"] == "shipped"


def test_a_shipped_study_is_asked_about_as_it_is_listed(autotune: Command, folder: Path) -> None:
    for command, layer in (("best", ""), ("history", ""), ("importance", ""), ("why", ".conv1-n100")):
        named = autotune(command, f"report-001{layer}", "--db", "recorded")
        assert (named.code, named.out != "") == (0, True), (command, named.err)
        assert autotune(command, f"reports/001{layer}", "--db", "recorded").out == named.out, command
    assert "no study or layer 'reports/009'" in autotune("best", "reports/009", "--db", "recorded").complaint


def test_the_recorded_database_by_name_is_only_read(autotune: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = autotune("best", "lenet-k5", "--db", "recorded")
    assert (asked.code, asked.err) == (0, "")
    networks = autotune("best", "vgg16-fp16", "--db", "recorded-networks")
    assert (networks.code, networks.err) == (0, "")
    assert "H100" in autotune("best", "resnet50-fp16-n1", "--db", "recorded-h100").out
    replayed = autotune("tune", "lenet-k5", "--device", "replay:recorded", "--trials", "1")
    assert (replayed.code, replayed.out.count("replay of NVIDIA H200")) == (0, 1)
    Store("other.db").close()
    for words in (("tune", "quickstart", "--device", "null"), ("clean", "--quarantine"), ("merge", "other.db")):
        for name in ("recorded", "recorded-networks", "recorded-convolutions", "recorded-h100"):
            complaint = autotune(*words, "--db", name).complaint
            assert complaint == f"{name}: these bundled results are read-only; give another --db"
    monkeypatch.setenv("AUTOTUNE_DB", "recorded")
    assert autotune("best", "lenet-k5").out == asked.out


def test_results_that_come_along_are_only_read_whatever_their_path(
    autotune: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = recorded_database("recorded-h100")
    (tmp_path / "linked.db").symlink_to(file)
    monkeypatch.chdir(file.parent)
    refused = "recorded-h100: these bundled results are read-only; give another --db"
    for name in (file.name, str(tmp_path / "linked.db"), f"../recorded/{file.name}"):
        assert autotune("tune", "quickstart", "--device", "null", "--db", name).complaint == refused
    with pytest.raises(StoreError, match="recorded-h100: these bundled results are read-only; give another --db"):
        tune_in_python("quickstart", device="null", db=file.name)


def test_a_recorded_database_whose_name_is_wrong_is_not_made(folder: Path, autotune: Command) -> None:
    refused = autotune("tune", "small.toml", "--family-dir", "families", "--device", "null", "--db", "recorded-h10")
    assert refused.code == 2
    assert "there are no bundled results named recorded-h10 (did you mean 'recorded-h100'?)" in refused.err
    assert not (folder / "recorded-h10").exists()
    complaint = autotune("best", "--db", "recorded.db").complaint
    assert complaint.startswith("recorded.db: no such file"), "a file's name"


def test_variables_are_defaults_of_options(
    folder: Path, tune: Command, autotune: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AUTOTUNE_DB", "kept.db")
    monkeypatch.setenv("AUTOTUNE_TUNE_TRIALS", "4")
    done = tune()
    assert done.code == 0, done.err
    assert "small.one: 4 evaluated" in done.err
    assert (folder / "kept.db").exists()
    assert autotune("best", "--db", "none.db").complaint.startswith("none.db: "), "the command line comes first"
    monkeypatch.setenv("AUTOTUNE_TUNE_TRIALS", "many")
    refused = tune()
    assert (refused.code, "Invalid value for '--trials': 'many'" in refused.err) == (2, True), refused.err


def test_the_last_of_several_formats_counts(filled: Path, autotune: Command) -> None:
    assert autotune("best", "--csv", "--json").out.startswith("[")
    assert autotune("best", "--json", "--csv").out.startswith("layer,")


def test_quiet_says_nothing_but_the_answer_and_errors(tune: Command, autotune: Command) -> None:
    done = tune("-q")
    assert (done.code, done.err) == (0, "")
    assert "small.one" in done.out
    assert autotune("best", "nobody", "-q").complaint.startswith("autotune.db: no study or layer")
    failed = tune("-q", "--device", "null:compile=1", "--db", "new.db")
    assert (failed.code, failed.err.startswith("autotune: small: no correct kernel of one")) == (1, True), failed.err


@pytest.mark.parametrize(
    ("words", "completed"),
    [
        ("best small.", ["plain,small.one", "file,small."]),
        ("tune vgg", ["plain,vgg16-fp16", "file,vgg"]),
        ("tune fam", ["file,fam"]),
        ("compare small --layer o", ["plain,one", "file,o"]),
        ("tune --family direct_", ["plain,direct_strip"]),
        ("clea", ["plain,clean"]),
    ],
)
def test_a_shell_completes(
    words: str, completed: list[str], filled: Path, autotune: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("_AUTOTUNE_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", f"autotune {words}")
    monkeypatch.setenv("COMP_CWORD", str(len(words.split())))
    assert autotune().out.splitlines() == completed


def test_an_old_name_of_an_option_works_and_names_the_new_one(filled: Path, autotune: Command) -> None:
    for old, new in (("--template=tiny", "--family=tiny"), ("--gpu=null", "--device=null")):
        renamed, current = autotune("trials", old, "--json"), autotune("trials", new, "--json")
        assert renamed.out == current.out != "[]\n"
        words = f"`{old.partition('=')[0]}` is now `{new.partition('=')[0]}`"
        assert renamed.err == f"note: {words}; the old name will be removed\n"


@pytest.mark.parametrize(
    ("words", "advice"),
    [
        (
            ("diff", "small", "small", "--by", "study"),
            "`--by` no longer exists: diff takes NAME@GENERATION for a study",
        ),
        (("best", "-v"), "`-v` no longer exists: --db says which database is used."),
    ],
)
def test_an_option_that_is_gone_says_what_to_do(
    words: tuple[str, ...], advice: str, filled: Path, autotune: Command
) -> None:
    gone = autotune(*words)
    assert (gone.code, gone.out, advice in gone.err) == (2, "", True), gone.err


def test_an_old_name_of_a_command_says_what_to_do(filled: Path, autotune: Command) -> None:
    renamed = autotune("quarantine")
    quarantined = "0 kernels quarantined in autotune.db"  # the cache's size changes while other tests compile
    assert (renamed.code, renamed.out.splitlines()[-1]) == (0, quarantined)
    assert autotune("clean").out.splitlines()[-1] == quarantined
    assert renamed.err == "note: `autotune quarantine` is now `autotune clean`; the old name will be removed\n"
    chosen = autotune("choose", "small")
    words = "note: `autotune choose` is now `autotune dispatch --explain`; the old name will be removed\n"
    assert chosen.err.startswith(words)
    assert "no dispatcher was made" in chosen.err
    removed = autotune("export-t4", "--out", "t4")
    assert removed.code == 2
    assert "`autotune export-t4` no longer exists: `autotune trials --json` prints every trial" in removed.err


def test_messages_name_bundled_results_and_studies_as_they_were_typed(autotune: Command) -> None:
    assert autotune("best", "nothing", "--db", "recorded").complaint.startswith("recorded: no study or layer 'nothing'")
    assert autotune("ladder", "quickstart").complaint == "quickstart: technique: a ladder needs [[technique]] tables"
