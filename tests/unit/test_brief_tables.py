"""Tables on a terminal of 80 columns: the deciding columns first, the others by name."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest

from autotune.cli.output import wrapped

from .test_cli import in_csv, rows
from .tiny import Command

SHIPPED = Path(__file__).parents[2] / "studies" / "recorded" / "h200.db"


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Standard output counts as a terminal of 80 columns."""
    for name, value in {"TTY_COMPATIBLE": "1", "COLUMNS": "80", "TERM": "xterm"}.items():
        monkeypatch.setenv(name, value)


def lines(text: str) -> list[str]:
    """Lines without colours."""
    return re.sub(r"\x1b\[[\d;]*m", "", text).splitlines()


@pytest.mark.usefixtures("terminal")
def test_a_terminal_gets_a_config_as_its_family_and_what_differs_from_its_default(autotune: Command) -> None:
    shown = lines(autotune("trials", "lenet-k5.conv1", "--db", SHIPPED, "--sort", "median", "--limit", 3).out)
    assert max(map(len, shown)) <= 80
    assert shown[0] == "layer lenet-k5.conv1; outcome correct"
    assert shown[1].split() == ["number", "median_us", "gflops", "registers"]
    words = " ".join(shown)
    assert words.count("input_stationary") == 3
    assert "images=" not in words, "the default's value of all three"
    assert "(default)" in autotune("trials", "lenet-k5.conv1", "--db", SHIPPED, "--limit", 40).out


@pytest.mark.usefixtures("terminal")
def test_of_a_family_of_the_users_own_all_values_are_shown(autotune: Command, filled: Path) -> None:
    shown = lines(autotune("trials", "small.one", "--outcome", "correct").out)
    configs = [line.split() for line in shown if line.startswith("  tiny ")]
    assert len(configs) > 2
    names = [[word.partition("=")[0] for word in words[1:]] for words in configs]
    assert names[0]
    assert names.count(names[0]) == len(names), "autotune does not know its default"


@pytest.mark.usefixtures("terminal")
@pytest.mark.parametrize(
    "words", [("best",), ("best", "lenet-k5"), ("history",), ("importance",), ("why",)], ids=" ".join
)
def test_what_is_known_of_a_layer_is_a_table_of_80_columns(words: tuple[str, ...], autotune: Command) -> None:
    finished = autotune(*words, *(("lenet-k5.conv1",) * (len(words) == 1)), "--db", SHIPPED)
    shown = lines(finished.out)
    assert finished.code == 0
    assert max(map(len, shown)) <= 80
    assert not any(re.match(r"(time_us|median_us|importance) {2,}\S+ *$", line) for line in shown), (
        "no row became lines"
    )


@pytest.mark.usefixtures("terminal")
def test_each_layer_and_family_has_a_table_of_its_own(autotune: Command) -> None:
    ladder = lines(autotune("ladder", "reports/001", "--stored", "--db", SHIPPED).out)
    assert max(map(len, ladder)) <= 80
    rungs = json.loads(autotune("ladder", "reports/001", "--stored", "--db", SHIPPED, "--json").out)
    layers = list(dict.fromkeys(row["layer"] for row in rungs))
    assert [line for line in ladder if line.startswith("device ")] == [
        f"device NVIDIA H200; layer {layer}" for layer in layers
    ]
    assert len(ladder) == len(rungs) + 3 * len(layers) - 1, "a line each, two above a table, one between"
    answer = lines(autotune("importance", "lenet-k5", "--db", SHIPPED).out)
    assert " affects lenet-k5.conv" in answer[0]
    assert len(answer) <= 15
    importance = lines(autotune("importance", "lenet-k5", "--db", SHIPPED, "--all").out)
    assert max(map(len, importance)) <= 80
    assert "layer lenet-k5.conv1; device NVIDIA H200; template direct" in importance
    assert not any(re.match(r"importance {2,}\S+ *$", line) for line in importance), "no row became lines"


def test_show_has_the_whole_of_a_trial(autotune: Command, filled: Path) -> None:
    (first, *_) = rows(autotune("trials", "small.one", "--outcome", "correct", "--json"))
    (whole,) = rows(autotune("show", "small.one", first["number"], "--json"))
    assert first.items() <= whole.items()
    assert isinstance(whole["samples_us"], list)
    assert len(whole["samples_us"]) > 2
    assert whole["toolkit"]
    assert whole["measurement_mode"] == "cold"
    assert in_csv(first["config"]) in autotune("show", "small.one", first["number"]).out
    (wrong, *_) = rows(autotune("trials", "small.one", "--outcome", "wrong_result", "--json"))
    assert (
        str(wrong["message"]).split()
        == autotune("show", "small.one", wrong["number"])
        .out.split("message")[1]
        .split()[: len(str(wrong["message"]).split())]
    )
    assert autotune("show", "small.one", 10**9).err == (
        "autotune: autotune.db: small.one has no trial 1000000000; `autotune trials small.one` lists all of them\n"
    )
    assert autotune("show", "small.one").err.splitlines()[-1] == "Error: Missing argument 'NUMBER'."


def test_into_a_pipe_a_row_is_a_line_without_padding(autotune: Command, filled: Path) -> None:
    words = ("best", "lenet-k5.conv1", "--db", SHIPPED)
    shared, *piped = autotune(*words).out.splitlines()
    assert shared == "device NVIDIA H200"
    assert len(piped) == len(rows(autotune(*words, "--json"))) + 1
    assert [line for line in piped if line != line.rstrip()] == []
    configs = [line[piped[0].index("config") :].split()[0] for line in piped[1:]]
    assert configs == ["input_stationary", "mma_strip", "mma_strip"], "the last column"
    whole = autotune(*words, "--wide").out
    assert "smem_bytes" in whole
    assert "thread_p=" in whole


def test_best_of_one_accuracy_class(autotune: Command) -> None:
    found = rows(autotune("best", "lenet-k5.conv1", "--db", SHIPPED, "--accuracy", "tf32", "--json"))
    assert [row["accuracy"] for row in found] == ["tf32"]


def test_trials_name_their_default_limit(autotune: Command) -> None:
    layer = ("trials", "lenet-k5.conv1", "--db", SHIPPED)
    finished = autotune(*layer)
    shown, count = re.fullmatch(r"(\d+) of (\d+); --limit 0 for all\n", finished.err).groups()  # type: ignore[union-attr]
    everything = autotune(*layer, "--csv")
    assert int(shown) == 50 == len([line for line in finished.out.splitlines() if "lenet-k5.conv1" in line])
    assert (int(count), everything.err) == (len(everything.out.splitlines()) - 1, "")
    whole = autotune(*layer, "--limit", 0)
    assert (whole.out.count("lenet-k5.conv1"), whole.err) == (int(count), "")
    few = autotune(*layer, "--outcome", "invalid_config")
    assert f"{len(few.out.splitlines()) - 1} of" not in few.err


def on_a_terminal(*words: object, **environment: str) -> str:
    """The output of a command on a terminal of 80 x 24."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "autotune", *map(str, words)]
    surroundings = {**os.environ, "COLUMNS": "80", "LINES": "24", "TERM": "xterm", **environment}
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=surroundings) as running:
        os.close(theirs)
        shown = b""
        while True:
            try:
                shown += (read := os.read(ours, 1 << 16))
            except OSError:  # the last process that had it open has ended
                break
            if not read:
                break
    os.close(ours)
    assert running.returncode == 0
    return shown.decode().replace("\r", "")


def test_a_terminal_of_no_columns_shows_what_one_does_that_says_nothing() -> None:
    words = ("best", "lenet-k5", "--db", SHIPPED)
    assert on_a_terminal(*words, COLUMNS="0") == on_a_terminal(*words, COLUMNS="") != ""


def test_a_notice_is_broken_between_words() -> None:
    shown = on_a_terminal("trials", "--db", SHIPPED, "--outcome", "runtime")
    first = "no such trial; --all includes earlier generations and earlier problems of the"
    assert shown.split("\n")[-3:] == [first, "layers", ""]


def test_a_command_and_a_number_with_its_unit_are_not_broken() -> None:
    text = "lenet.conv1 is faster than its floor: it took 1024.5 us; run `autotune devices --calibrate` there"
    for width in range(30, 100):
        shown = wrapped(text, width, "")
        assert "1024.5 us" in shown
        assert "`autotune devices --calibrate`" in shown
        assert shown.split() == text.split()
