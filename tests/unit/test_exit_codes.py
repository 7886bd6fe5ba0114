"""How commands end: with exit codes for scripts, and with messages that say what to do next."""

from __future__ import annotations

import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from autotune.store import Store
from tests.fork_server import ForkedRun, ForkServer

from .test_analysis_commands import change
from .test_cli import answered, rows
from .tiny import Command, changed

WORDS = ("--family-dir", "families", "--device")
SLOW = (*WORDS, "null:delay_ms=100", "--trials", "40")
LAYERS = "".join(
    f'[[layer]]\nname = "{name}"\nn = 3\nc = 2\nh = {h}\nw = 8\nk = 4\nr = 3\ns = 3\n'
    for name, h in (("two", 10), ("three", 11))
)


@pytest.fixture
def three(folder: Path) -> Path:
    """The small study with two layers more."""
    study = folder / "small.toml"
    study.write_text(study.read_text() + LAYERS)
    return study


def test_a_layer_without_a_correct_kernel_ends_tune_with_1(three: Path, autotune: Command) -> None:
    three.write_text(changed(three.read_text(), ("trials = 10", "trials = 3")))
    ended = autotune("tune", "small.toml", *WORDS, "null:wrong=1", "--json")
    assert answered(1, ended) == []
    last = ended.err.splitlines()[-1]
    why = r"\(budget: the null device simulates a wrong result\)"
    assert re.fullmatch(rf"autotune: small: no correct kernel of one {why}; two {why}; three {why}", last)
    one = autotune("tune", "small.toml", *WORDS, "null", "--layer", "two", "--json", "--db", "other.db")
    assert [row["layer"] for row in rows(one)] == ["small.two"], "a layer that was not asked for is none's fault"
    assert autotune("compare", "small.toml", *WORDS, "null", "--db", "other.db").err.endswith(
        "autotune: small: no correct kernel of one (finals only); three (finals only)\n"
    )


@pytest.fixture
def slow(three: Path, fork_server: ForkServer) -> ForkedRun:
    """A run that lasts some seconds after its start."""
    run = fork_server.start(three.parent, "tune", "small.toml", *SLOW)
    run.wait_for("small: 1/120")
    assert not run.ended
    return run


def test_one_interrupt_ends_the_run_in_order(slow: ForkedRun, autotune: Command) -> None:
    time.sleep(0.35)
    slow.send_signal(signal.SIGINT)
    ended = slow.finish()
    assert ended.code == 130
    assert "finishing the running trial; press Ctrl-C again to stop immediately" in ended.err
    assert "stopped: interrupted" in ended.err
    assert "small.one" in ended.out, "the best so far is shown"
    assert "finals" not in ended.err
    trials = rows(autotune("trials", "--json"))
    unfinished = (
        "small is unfinished: 2 layers without a trial, 1 layer without finals; `autotune tune small` resumes it"
    )
    assert unfinished in autotune("best", "small").err
    outcomes = [str(row["outcome"]) for row in trials]
    assert "running" not in outcomes
    assert 2 <= outcomes.count("correct") < 40
    assert rows(autotune("query", "SELECT * FROM finals", "--json")) == []
    said = re.fullmatch(
        r"autotune: interrupted; not tuned: small.one \((\d+) of 40 evaluated\), small.two, small.three; "
        r"to resume: autotune (.*)",
        ended.err.splitlines()[-1],
    )
    assert said is not None, ended.err
    assert int(said[1]) == len({row["source_hash"] for row in trials})
    again = [word.replace("delay_ms=100", "") for word in shlex.split(said[2])]
    resumed = autotune(*again)
    assert resumed.code == 0
    assert re.search(rf"small.one: 40 evaluated \({40 - int(said[1])} now\)", resumed.err)
    assert resumed.err.count("finals: ") == 3
    assert autotune("best", "small").err == ""


@pytest.mark.cxx
def test_an_interrupt_of_a_proof_says_that_the_folder_is_not_proven(filled: Path, fork_server: ForkServer) -> None:
    words = ("export", "small", "--out", "out")
    run = fork_server.start(filled.parent, *words)
    run.wait_for("building the library")
    run.send_signal(signal.SIGINT)
    ended = run.finish()
    assert ended.code == 130
    said = "autotune: interrupted; out was written and is not proven; to begin again: autotune "
    assert ended.err.splitlines()[-1] == f"{said}{shlex.join(words)}"
    assert (filled.parent / "out" / "small.one.null.cu").exists()
    assert not (filled.parent / "out" / "proof.txt").exists()


def test_an_ignored_interrupt_stays_ignored(three: Path) -> None:
    """A shell starts background commands of a script in this way, and Ctrl-C must not end them there."""
    words = (sys.executable, "-m", "autotune", "tune", "small.toml", *WORDS, "null:delay_ms=20", "--trials", "5")
    shell = f"trap '' INT; exec {shlex.join(words)}"
    with subprocess.Popen(["bash", "-c", shell], cwd=three.parent, stderr=subprocess.PIPE, text=True) as run:
        assert run.stderr is not None
        while "1/15" not in (line := run.stderr.readline()):
            assert line, "it has ended"
        run.send_signal(signal.SIGINT)
        said = run.stderr.read()
    assert run.returncode == 0
    assert "finishing" not in said
    assert said.count("finals: ") == 3


def test_one_interrupt_ends_all_layers_under_way(three: Path, fork_server: ForkServer, autotune: Command) -> None:
    words = (*WORDS, "null:compile_ms=60,delay_ms=60,compilers=6", "--trials", "30")
    run = fork_server.start(three.parent, "tune", "small.toml", *words)
    run.wait_for("small: 1/90")
    while len({row["layer"] for row in rows(autotune("trials", "--json")) if row["outcome"] == "running"}) < 2:
        assert not run.ended
    run.send_signal(signal.SIGINT)
    ended = run.finish()
    assert ended.code == 130
    trials = rows(autotune("trials", "--limit", "1000", "--json"))
    assert "running" not in {row["outcome"] for row in trials}
    said = re.findall(r"small\.(\w+) \((\d+) of 30 evaluated\)", ended.err.splitlines()[-1])
    assert len(said) >= 2, ended.err
    for layer, count in said:
        assert int(count) == sum(row["layer"] == f"small.{layer}" for row in trials)
    resumed = autotune("tune", "small.toml", *words)
    assert resumed.code == 0
    assert [int(count) for count in re.findall(r": (\d+) evaluated", resumed.err)] == [30, 30, 30]


def test_of_a_budget_in_total_an_interrupt_says_what_is_left_in_a_line(
    three: Path, fork_server: ForkServer, autotune: Command
) -> None:
    words = (*WORDS, "null:compile_ms=60,delay_ms=60,compilers=6", "--trials-total", "45")
    run = fork_server.start(three.parent, "tune", "small.toml", *words)
    run.wait_for("small: 1/45")
    run.send_signal(signal.SIGINT)
    last = run.finish().err.splitlines()[-1]
    trials = rows(autotune("trials", "--limit", "1000", "--json"))
    said = re.search(r"; not tuned: small \((\d+) of 45 evaluated, (\d) of 3 layers begun\); to resume: ", last)
    assert said, last
    assert int(said[1]) == len(trials)
    with_trials = len({row["layer"] for row in trials})
    assert with_trials <= int(said[2]) <= 3, "a layer may be begun and have no trial yet"


def test_the_way_to_resume_does_not_begin_anew(three: Path, fork_server: ForkServer) -> None:
    run = fork_server.start(three.parent, "tune", "small.toml", *SLOW, "--fresh", "--db", "with space.db")
    run.wait_for("small: 1/120")
    run.send_signal(signal.SIGINT)
    last = run.finish().err.splitlines()[-1]
    assert last.endswith(f"to resume: autotune tune small.toml {' '.join(SLOW)} --db 'with space.db'")


def test_finals_that_an_interrupt_spared_are_held_by_the_next_run(
    folder: Path, autotune: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert autotune("tune", "small.toml", *WORDS, "null").code == 0
    assert autotune("tune", "small.toml", *WORDS, "null", "--trials", "20").err.count("finals: ") == 1
    change(folder / "autotune.db", "DELETE FROM verdicts WHERE finals_id = 2")
    change(folder / "autotune.db", "DELETE FROM measurements WHERE finals_id = 2")
    change(folder / "autotune.db", "DELETE FROM finals WHERE id = 2")  # as if the run had been stopped before it
    again = autotune("tune", "small.toml", *WORDS, "null", "--trials", "20")
    assert "(0 now)" in again.err
    assert again.err.count("finals: ") == 1
    assert autotune("tune", "small.toml", *WORDS, "null", "--trials", "20").err.count("finals: ") == 0


RUNNING = "SELECT attempts FROM results WHERE outcome = 'running'"


def test_a_second_interrupt_ends_it_at_once(folder: Path, fork_server: ForkServer, autotune: Command) -> None:
    words = ("--family-dir", "families", "--device", "null:delay_ms=1000", "--trials", "40")  # a second each, ready
    run = fork_server.start(folder, "tune", "small.toml", *words)
    run.wait_for("small.one: 1/40")
    while not (running := rows(autotune("query", RUNNING, "--json"))):
        assert not run.ended
    run.send_signal(signal.SIGINT)
    run.wait_for("finishing the running trial")  # two signals that wait for a busy process together count as one
    run.send_signal(signal.SIGINT)
    ended = run.finish()
    assert ended.code == 130, ended.err
    assert "Traceback" not in ended.err
    left = rows(autotune("query", RUNNING, "--json"))
    assert [row["attempts"] for row in (*running, *left)] == [1, 0], "it counts against no kernel"
    (folder / "small.toml").write_text(changed((folder / "small.toml").read_text(), ("trials = 10", "trials = 40")))
    finished = autotune("tune", "small.toml", *WORDS, "null")
    assert "small.one: 40 evaluated" in finished.err, "and what it left behind is resumed"


def test_ctrl_c_ends_whatever_else_runs_with_130(folder: Path, fork_server: ForkServer) -> None:
    run = fork_server.start(folder, "load", "-")
    time.sleep(0.3)
    run.send_signal(signal.SIGINT)
    ended = run.finish()
    assert ended.code in (1, 130), ended.err  # 1: standard input had already ended
    assert "Traceback" not in ended.err
    (folder / "small.toml").write_text((folder / "small.toml").read_text() + TECHNIQUES)
    run = fork_server.start(folder, "ladder", "small.toml", *WORDS, "null:delay_ms=100")
    run.wait_for("small.one: 1/10")
    run.send_signal(signal.SIGINT)
    ended = run.finish()
    assert ended.code == 130
    assert (
        "autotune: interrupted; 1 of 2 rows were measured, the last in part; to resume: autotune ladder " in ended.err
    )


TECHNIQUES = """
[[technique]]
name = "plain"
template = "tiny"
space = { order = ["rows"] }
[[technique]]
name = "taps"
template = "tiny"
space = { order = ["taps"] }
"""


# retime

OF_NUMBER = "SELECT id FROM trials WHERE number"


def test_winners_that_hold_end_retime_with_0(filled: Path, autotune: Command) -> None:
    (held,) = answered(0, autotune("retime", *WORDS, "null", "--best", "1", "--json"))
    assert (held["layer"], held["label"]) == ("small.one", "confirmed")


def test_a_winner_that_regressed_ends_retime_with_3(filled: Path, autotune: Command) -> None:
    trials = rows(autotune("trials", "--outcome", "correct", "--sort", "median", "--json"))
    first, second = (row["number"] for row in trials[:2])
    factor = f"median_us = median_us * 0.5, ranking_median_us = ranking_median_us * 0.5 WHERE number = {second}"
    change(filled, f"UPDATE trials SET {factor}")
    slower = autotune("retime", *WORDS, "null", "--best", "2", "--json")
    labels = {row["trial"]: row["label"] for row in answered(0, slower)}
    assert labels == {first: "confirmed", second: "regressed"}, "one that has not won may regress"
    change(
        filled,
        "UPDATE trials SET median_us = median_us * 0.5, ranking_median_us = ranking_median_us * 0.5 "
        f"WHERE number = {first}",
    )
    change(filled, f"UPDATE measurements SET median_us = median_us * 0.5 WHERE trial_id IN ({OF_NUMBER} = {first})")
    ended = autotune("retime", *WORDS, "null", "--best", "1", "--json")
    assert [row["label"] for row in answered(3, ended)] == ["regressed"]
    assert ended.err.endswith("autotune: 1 of 1 winners regressed or failed: small.one (fp32) regressed\n")


def test_a_winner_that_is_no_longer_correct_ends_retime_with_3(filled: Path, autotune: Command) -> None:
    ended = autotune("retime", *WORDS, "null:wrong=1", "--best", "1", "--json")
    (failed,) = answered(3, ended)
    assert failed["label"] == "failed"
    assert "the null device simulates a wrong result" in str(failed["message"])


def test_winners_that_cannot_be_run_are_skipped(filled: Path, autotune: Command) -> None:
    change(filled, "DELETE FROM source_paragraphs")
    ended = autotune("retime", "--device", "null")
    assert ended.code == 1
    assert "is not re-timed: its text is not stored, and tiny is not installed" in ended.err
    with Store(filled, create=False) as store:
        assert store.retimes.list() == ()


def test_an_imported_winner_counts(filled: Path, autotune: Command) -> None:
    change(filled, "UPDATE trials SET origin = 'imported', ranking_median_us = NULL, median_us = median_us * 0.5")
    change(filled, "UPDATE finals SET origin = 'imported'")
    change(filled, "UPDATE measurements SET median_us = median_us * 0.5")
    ended = autotune("retime", *WORDS, "null", "--best", "2", "--json")
    assert [row["label"] for row in answered(3, ended)] == ["regressed"] * 2


def test_an_interrupted_retime_says_what_is_left(three: Path, fork_server: ForkServer, autotune: Command) -> None:
    assert autotune("tune", "small.toml", *WORDS, "null").code == 0
    words = ("retime", *WORDS, "null:delay_ms=300")
    run = fork_server.start(three.parent, *words)
    run.wait_for("device null")
    with Store(three.parent / "autotune.db", create=False) as store:
        while not run.ended and not store.retimes.list():
            time.sleep(0.02)
        run.send_signal(signal.SIGINT)
        ended = run.finish()
        layers = "SELECT DISTINCT tuning_target_id FROM retimes JOIN trials ON trials.id = trial_id"
        done = len(store.query(layers).rows)
    assert ended.code == 130
    assert done in (1, 2), "one that is under way is ended"
    left = ", ".join(["small.one", "small.two", "small.three"][done:])
    assert ended.err.splitlines()[-1].startswith(f"autotune: interrupted; not re-timed: {left}; to begin")
