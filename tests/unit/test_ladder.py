"""`autotune ladder`: the gain of each technique, immediately or from the record, with a profiler's counters."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from autotune.analysis.profile import compiled
from autotune.evaluation.null import NullEvaluator
from autotune.family.template_files import load_templates
from autotune.store import Store
from autotune.trial import KernelProfile
from tests.benchmarks.smaller_database import compact, shrink

from .test_cli import rows
from .tiny import STUDY, Command, write_family

LADDER = """
[[technique]]
name = "plain"
template = "tiny"
space = { threads = [64], turns = [1], order = ["taps"], fast = [false] }
report = "made up"
reported_ms = { one = 1.5 }
[[technique]]
name = "more outputs a thread"
template = "tiny"
space = { threads = [64], order = ["taps"] }
"""


SLOW = LADDER.replace(
    'threads = [64], turns = [1], order = ["taps"], fast = [false]', 'threads = [128], order = ["rows"]'
)
"""The same with a first technique of several configs, all slow on the null device."""


def test_a_ladder_shows_what_each_technique_gains(folder: Path, autotune: Command) -> None:
    (folder / "small.toml").write_text((folder / "small.toml").read_text() + LADDER)
    words = ("--family-dir", "families", "--device", "null", "--json")
    first, second = rows(autotune("ladder", "small.toml", *words))
    assert (first["technique"], first["reported_ms"], first["evaluated"]) == ("plain", 1.5, 1)
    assert (second["technique"], second["reported_ms"], second["evaluated"]) == ("more outputs a thread", None, 5)
    gain = float(str(first["best_us"])) / float(str(second["best_us"]))
    assert second["over_first"] == second["over_previous"] == pytest.approx(gain)
    assert gain >= 1, "a wider space is never slower"
    assert rows(autotune("ladder", "small.toml", *words)) == [first, second], "and it resumes"
    assert rows(autotune("ladder", "small.toml", "--stored", "--json")) == [first, second], "and is said again"


def test_a_config_that_was_tried_again_after_its_family_changed_counts_once(folder: Path, autotune: Command) -> None:
    (folder / "small.toml").write_text((folder / "small.toml").read_text() + LADDER)
    words = ("ladder", "small.toml", "--family-dir", "families", "--device", "null", "--json")
    assert autotune(*words, "--db", "old.db").code == 0
    with closing(sqlite3.connect("old.db")) as connection:
        connection.execute("UPDATE measurements SET median_us = median_us / 2")
        connection.commit()
    write_family(folder / "families", ("float sum = 0.0f;", "float sum = 0;"))
    new = rows(autotune(*words))
    assert autotune("merge", "old.db").code == 0
    stored = rows(autotune("ladder", "small.toml", "--stored", "--json"))
    assert [(row["best_us"], row["evaluated"]) for row in stored] == [(row["best_us"], row["evaluated"]) for row in new]


def test_a_technique_may_have_trials_of_its_own(folder: Path, autotune: Command) -> None:
    wide = LADDER.replace('space = { threads = [64], order = ["taps"] }', 'space = { order = ["taps"] }\ntrials = 3')
    (folder / "small.toml").write_text((folder / "small.toml").read_text() + wide)
    words = ("small.toml", "--family-dir", "families", "--device", "null", "--json")
    assert [row["evaluated"] for row in rows(autotune("ladder", *words))] == [1, 3]
    few = rows(autotune("ladder", *words, "--db", "few.db", "--trials", "2"))
    assert [row["evaluated"] for row in few] == [1, 2], "the option holds for all techniques"


def test_a_ladder_leaves_alone_what_is_best(folder: Path, tune: Command, autotune: Command) -> None:
    assert tune("--device", "null").code == 0
    best = rows(autotune("best", "small", "--json"))
    assert best[0]["decided_by"] == "finals"
    (folder / "small.toml").write_text((folder / "small.toml").read_text() + SLOW)
    climbed = rows(autotune("ladder", "small.toml", "--family-dir", "families", "--device", "null", "--json"))
    assert float(str(climbed[0]["best_us"])) > 1.2 * float(str(best[0]["median_us"]))
    assert rows(autotune("best", "small", "--json")) == best


def test_what_a_profiler_saw_stands_beside_the_rung(folder: Path, autotune: Command) -> None:
    (folder / "small.toml").write_text((folder / "small.toml").read_text() + SLOW)
    words = ("--family-dir", "families", "--device", "null")
    plain = autotune("ladder", "small.toml", *words)
    assert "achieved_occupancy" not in plain.out
    with Store("autotune.db") as store:
        climbed = [
            row for row in store.trials.list("small", sort="median") if row.trial.config.params["threads"] == 128
        ]
        first = climbed[0]
        short = KernelProfile("ncu 1", 0, "short", time_us=1.0, achieved_occupancy=0.1)
        long = KernelProfile(
            *("ncu 1", 1, "long"),
            time_us=100.0,
            achieved_occupancy=0.837,
            l1_hit_fraction=0.5,
            store_efficiency_fraction=0.888,
            shared_efficiency_fraction=0.7,
            dram_read_bytes=4e6,
            dram_written_bytes=2.2e6,
            shared_load_wavefronts=1e6,
            stalls=(("wait", 3.0), ("barrier", 2.0), ("drain", 1.0)),
        )
        store.profiles.add(first, first.device, first.environment, [short, long])
    seen, other = rows(autotune("ladder", "small.toml", "--stored", "--json"))
    assert (seen["entry"], seen["achieved_occupancy"], seen["l1_hit_fraction"]) == ("long", 0.837, 0.5)
    trial = first.trial
    facts = (trial.resources.registers, trial.smem_bytes, trial.occupancy)
    assert (seen["registers"], seen["smem_bytes"], seen["occupancy"]) == facts
    assert (seen["store_efficiency_fraction"], seen["shared_efficiency_fraction"]) == (0.888, 0.7)
    assert (seen["dram_read_bytes"], seen["l2_bytes"]) == (4e6, None)
    assert seen["stalls"] == {"wait": 3.0, "barrier": 2.0, "drain": 1.0}
    assert seen["launch_shares"] == {"long": pytest.approx(100 / 101), "short": pytest.approx(1 / 101)}
    assert (other["entry"], other["stalls"], other["launch_shares"]) == (None, None, None)
    assert "achieved_occupancy" in autotune("ladder", "small.toml", "--stored", "--wide").out


def test_a_ladder_that_cannot_be_profiled_is_not_climbed(
    folder: Path, autotune: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "small.toml").write_text((folder / "small.toml").read_text() + LADDER)
    words = ("ladder", "small.toml", "--family-dir", "families", "--device", "null")
    monkeypatch.delenv("CUDA_HOME", raising=False)
    (folder / "bin").mkdir()
    (folder / "bin" / "ncu").write_text("#!/bin/sh\n")
    (folder / "bin" / "ncu").chmod(0o755)
    monkeypatch.setenv("PATH", str(folder / "bin"))
    complaint = autotune(*words, "--profile").complaint
    assert complaint == "null: Nsight Compute profiles CUDA devices only; give --device cuda:N"
    assert not (folder / "autotune.db").exists()
    for beside in ("--profile", "--device=null", "--jobs=2"):
        refused = autotune("ladder", words[1], beside, "--stored")
        option = beside.partition("=")[0]
        assert (refused.code, refused.err.splitlines()[-1]) == (
            2,
            f"Error: --stored: {option} has no effect; leave it out",
        )


def test_a_ladder_that_was_never_climbed_has_nothing_to_say(folder: Path, filled: Path, autotune: Command) -> None:
    (folder / "small.toml").write_text(
        (folder / "small.toml").read_text() + LADDER.replace("turns = [1]", "turns = [2]")
    )
    connection = sqlite3.connect(filled)
    connection.execute("UPDATE trials SET median_us = NULL, ranking_median_us = NULL, outcome = 'runtime'")
    connection.commit()
    connection.close()
    complaint = autotune("ladder", "small.toml", "--stored").complaint
    assert complaint == "autotune.db: no technique of small was tried; run `autotune ladder STUDY` first"


@pytest.mark.parametrize(
    ("technique", "words"),
    [
        ("", "technique: a ladder needs [[technique]] tables"),
        (
            LADDER.replace('"tiny"', '"tinny"'),
            "technique 'plain': no family named 'tinny' (did you mean 'tiny'?); there are ",
        ),
        (LADDER.replace("turns", "turn"), "technique 'plain': space.tiny.turn: no such parameter; tiny has threads, "),
    ],
)
def test_a_ladder_that_cannot_be_climbed(technique: str, words: str, folder: Path, autotune: Command) -> None:
    (folder / "small.toml").write_text(STUDY + technique)
    complaint = autotune("ladder", "small.toml", "--family-dir", "families", "--device", "null").complaint
    assert complaint.startswith(f"small.toml: {words}")
    assert not (folder / "autotune.db").exists()


def test_a_kernel_whose_text_was_dropped_is_rendered_again_to_be_profiled(folder: Path, tune: Command) -> None:
    assert tune("--device", "null").code == 0
    compact(Path("autotune.db"), Path("small.db"))
    shrink(Path("small.db"), best_texts_only=True)
    families = load_templates((folder / "families",))
    said: list[str] = []
    with Store("small.db", create=False) as store, closing(NullEvaluator("")) as evaluator:
        rows = [
            row
            for row in store.trials.list("small", outcome="correct")
            if not store.sources.get(row.trial.source_hash or "")
        ]
        kernels = compiled(store, evaluator, rows, families, said.append)
        assert [kernel.source.hash for kernel in kernels] == [row.trial.source_hash for row in rows] != []
        assert not said
        assert not compiled(store, evaluator, rows[:1], {}, said.append)
    assert said == [
        f"small.one: {rows[0].trial.config}: not profiled: its text is not stored, and tiny is not installed"
    ]
