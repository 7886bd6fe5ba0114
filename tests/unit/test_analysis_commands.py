"""Questions to the results database as a user asks them: why, diff, stale, history, retime."""

from __future__ import annotations

import re
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from autotune.cli.output import for_people, name_database, note
from autotune.store import Store
from autotune.trial import KernelProfile

from .store.builders import correct, open_scope, run_trial
from .test_cli import answered, in_csv, rows, table
from .tiny import Command, Finished, changed, write_family

RECORDED = Path(__file__).parents[2] / "tests" / "data" / "databases" / "report-layers.db"


def change(path: Path, sql: str) -> None:
    """Change a database behind the store's back."""
    with closing(sqlite3.connect(path)) as raw, raw:
        raw.execute(sql)
    raw.close()


def test_why_tells_of_parameters_steps_families_and_failures(filled: Path, autotune: Command) -> None:
    found = rows(autotune("why", "small.one", "--family-dir", "families", "--json"))
    assert {row["layer"] for row in found} == {"small.one"}
    assert [row["about"] for row in found].count("winner") == 1
    (best,) = rows(autotune("best", "small", "--json"))
    winner = next(row for row in found if row["about"] == "winner")
    assert (winner["time_us"], winner["config"]) == (best["median_us"], best["config"])
    recorded = [row for row in found if row["about"] == "step"]
    assert recorded
    failures = [row for row in found if row["about"] == "failure"]
    trials = rows(autotune("trials", "small", "--json"))
    assert sum(int(str(row["trials"])) for row in failures) == sum(row["outcome"] != "correct" for row in trials)
    text = autotune("why", "one", "--family-dir", "families", "--all").out
    for words in ("small.one on null: tiny wins with ", "one step from the winner\n", "what failed\n", "Config: tiny"):
        assert words in text
    assert autotune("why", "small", "--csv").out.startswith("layer,device,accuracy,about,template,parameter,")


def test_why_tells_what_a_profiler_saw(filled: Path, autotune: Command) -> None:
    with Store("autotune.db") as store:
        (best,) = store.best.list("small")
        seen = KernelProfile("ncu 2025.3", 0, "conv2d_tiny", achieved_occupancy=0.46, stalls=(("barrier", 3.25),))
        store.profiles.add(best.row, best.row.device, best.row.environment, [seen])
    line = "ncu 2025.3 on conv2d_tiny: achieved occupancy 0.46, warps stalled for barrier 3.2.\n"
    assert line in autotune("why", "small.one", "--all").out


@pytest.mark.parametrize(
    "words", [("why", "small.one"), ("history", "small.one"), ("diff", "small", "small"), ("best", "--device", "null")]
)
def test_answers_are_the_same_as_csv_and_change_nothing(
    words: tuple[str, ...], folder: Path, filled: Path, autotune: Command
) -> None:
    before = {path: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    objects = rows(autotune(*words, "--json"))
    header, *lines = table(autotune(*words, "--csv"))
    assert objects
    assert header == list(objects[0])
    assert lines == [list(map(in_csv, row.values())) for row in objects]
    assert autotune("stale", "--csv").out.startswith("layer,device,accuracy,")
    assert {path: path.read_bytes() for path in folder.iterdir() if path.is_file()} == before


def test_why_names_as_other_classes_only_others(folder: Path, autotune: Command) -> None:
    with Store("autotune.db") as store:
        scope = open_scope(store)
        for number, (us, accuracy, deterministic) in enumerate(
            [(10.0, "fp32", True), (8.0, "fp32", False), (7.0, "tf32", True), (6.0, "tf32", False)]
        ):
            trial = correct(number, us, accuracy=accuracy, deterministic=deterministic)
            run_trial(store, scope, trial)
    answer = autotune("why", "lenet", "--accuracy", "fp32")
    assert (answer.code, "Other accuracy classes" in answer.out) == (0, False), answer
    others = [line for line in autotune("why", "lenet").out.splitlines() if line.startswith("Other accuracy classes")]
    assert len(others) <= 1
    assert all(line.count("(") == 1 for line in others), others


def test_why_needs_no_installed_family(filled: Path, autotune: Command) -> None:
    text = autotune("why", "small.one", "--all").out
    assert "rules: the family tiny is not installed" in text
    write_family(filled.parent / "families", ("One output", "Just one output"))
    text = autotune("why", "small.one", "--family-dir", "families", "--all").out
    assert "rules: by the installed file, which has changed since" in text


def test_history_says_where_there_is_nothing(folder: Path, autotune: Command) -> None:
    said = autotune("history", "lenet-k5.conv1", "--accuracy", "bf16", "--db", "recorded")
    assert said.code == 0
    assert said.err.endswith("recorded has no improvement, finals or retime that the options admit\n")


def test_why_says_when_there_is_nothing_to_explain(filled: Path, autotune: Command) -> None:
    assert "no study or layer 'large'" in autotune("why", "large").complaint
    change(filled, "UPDATE trials SET median_us = NULL, ranking_median_us = NULL, outcome = 'runtime'")
    complaint = autotune("why", "small").complaint
    advice = "no trial of it was correct: `autotune trials small` shows each message"
    assert complaint == f"autotune.db: no best kernel of small to explain; {advice}"


@pytest.mark.parametrize("layer", ["lenet-k5.conv1", "lenet-k7.conv2", "fashion-k7.conv1"])
def test_why_answers_from_recorded_results(layer: str, autotune: Command) -> None:
    answer = autotune("why", layer, "--db", RECORDED, "--accuracy", "fp32")
    first, *others = answer.out.splitlines()
    assert re.match(rf"{layer} on NVIDIA H200: \w+ wins with [\d.]+ us in class fp32, 1\.\d+ times as fast as", first)
    heading = next(line for line in others if line.startswith("instead"))
    *table, more = others[others.index(heading) + 1 :]
    assert 5 <= len(table) <= 10
    assert re.fullmatch(r"\d+ more lines with --all", more)
    text = autotune("why", layer, "--db", RECORDED, "--all").out
    for words in (f"{layer} on NVIDIA H200: ", "of the floor's speed", "families\n", "refused"):
        assert words in text


def test_a_hint_keeps_the_database_that_was_typed(filled: Path, autotune: Command) -> None:
    Path("autotune.db").rename("my results.db")
    assert autotune("dispatch", "small", "--explain", "--db", "my results.db").complaint == (
        "my results.db: no dispatcher was made of all layers of a study; "
        "run `autotune dispatch STUDY --db 'my results.db'` first"
    )


def test_a_hint_about_the_machine_names_no_database(capsys: pytest.CaptureFixture[str]) -> None:
    with for_people():
        name_database("recorded")
        note("`autotune doctor` says how to install it; `autotune trials one` lists them")
    said = "`autotune doctor` says how to install it; `autotune trials one --db recorded` lists them\n"
    assert capsys.readouterr().err == said


def test_best_says_how_well_it_fits(folder: Path, filled: Path, autotune: Command) -> None:
    (exact,) = rows(autotune("best", "small", "--json"))
    assert exact["match"] == "exact"
    assert rows(autotune("best", "small", "--device", "null", "--json")) == [exact]
    change(filled, "UPDATE devices SET name = 'nothing', memory_bytes = 1")
    (like,) = rows(autotune("best", "small", "--device", "null", "--json"))
    assert (like["match"], like["device"], like["median_us"]) == ("device class", "nothing", exact["median_us"])
    assert rows(autotune("best", "--device", "NOTH", "--json"))[0]["match"] == "exact", "a part of a recorded name"
    change(filled, "UPDATE devices SET sm_count = 1")
    (none,) = rows(autotune("best", "small", "--device", "null", "--json"))
    assert (none["layer"], none["match"], none["median_us"], none["device"]) == ("small.one", "none", None, None)
    complaint = autotune("best", "--device", "h100").complaint
    assert complaint == "h100: no recorded device of this name; there are nothing; or give cuda:N, host or null"


def test_a_layer_without_a_kernel_is_a_row_with_match_none(folder: Path, tune: Command, autotune: Command) -> None:
    assert tune("--device", "null:wrong=1").code == 1
    (none,) = rows(autotune("best", "small.one", "--json"))
    assert (none["layer"], none["match"], none["median_us"]) == ("small.one", "none", None)
    assert "none" in autotune("best", "small").out


def test_trials_are_of_the_problem_that_the_layer_is_now(folder: Path, tune: Command, autotune: Command) -> None:
    tune()
    earlier = {row["problem"] for row in rows(autotune("trials", "--json"))}
    text = (folder / "small.toml").read_text()
    before = text[text.index("[[layer]]") :].replace('"one"', '"before"')
    (folder / "small.toml").write_text(changed(text, ("h = 9", "h = 19")) + before)
    tune("--trials", "3")
    now = {row["problem"] for row in rows(autotune("trials", "small.one", "--json"))}
    assert len(earlier) == len(now) == 1
    assert earlier != now
    assert {row["problem"] for row in rows(autotune("trials", "small.one", "--all", "--json"))} == earlier | now
    tune("--fresh", "--trials", "1")
    assert {row["generation"] for row in rows(autotune("trials", "small", "--json"))} == {2}
    assert {row["generation"] for row in rows(autotune("trials", "small", "--all", "--json"))} == {1, 2}
    finished = autotune("trials", "--outcome", "timeout")
    assert finished.err.startswith("no such trial; --all includes earlier generations")


def test_diff_of_two_generations(folder: Path, tune: Command, autotune: Command) -> None:
    tune()
    tune("--fresh", "--trials", "40")
    (row,) = rows(autotune("diff", "small@1", "small", "--json"))
    (newest,) = rows(autotune("best", "small", "--json"))
    assert row["b_us"] == newest["median_us"]
    assert row["b_over_a"] == float(str(row["b_us"])) / float(str(row["a_us"])) < 1
    assert (row["verdict"], row["config_changed"]) == ("faster", True)
    assert "->" in str(row["changes"])
    finished = autotune("diff", "small@2", "small@1", "one")
    assert finished.err == "A: small generation 2; B: small generation 1; 1 slower\n"
    (same,) = rows(autotune("diff", "small", "small@2", "--json"))
    assert (same["verdict"], same["config_changed"], same["changes"]) == ("same", False, None)


def test_diff_tells_rows_of_one_layer_apart(autotune: Command, folder: Path) -> None:
    with Store("autotune.db") as store:
        scope = open_scope(store)
        run_trial(store, scope, correct(0, 10.0))
        run_trial(store, scope, correct(1, 9.0, deterministic=False))
    lines = [line for line in autotune("diff", "lenet", "lenet").out.splitlines() if "lenet.conv1" in line]
    assert sorted(word for line in lines for word in ({"yes", "no"} & set(line.split()))) == ["no", "yes"]


def test_diff_of_devices(filled: Path, autotune: Command) -> None:
    (row,) = rows(autotune("diff", "null", "null", "--json"))
    assert (row["verdict"], row["device_a"], row["device_b"]) == ("same", "null", "null")


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("small", "null"), "'small' is a study and 'null' a device; give two studies or two devices"),
        (
            ("small", "large"),
            "'large' is neither a study nor a device; there are the studies small, the devices null",
        ),
        (("small", "small@7"), "'small@7' is neither a study nor a device; there are the studies small, "),
        (("small", "small", "two"), "autotune.db: no study or layer 'two'; it has "),
    ],
)
def test_diff_of_what_cannot_be_compared(
    words: tuple[str, ...], complaint: str, filled: Path, autotune: Command
) -> None:
    assert autotune("diff", *words).complaint.startswith(complaint)


def test_a_trial_whose_measurement_another_program_took_is_no_improvement(filled: Path, autotune: Command) -> None:
    before = rows(autotune("history", "small.one", "--json"))
    improved = [row["trial"] for row in before if row["event"] == "improvement"]
    first = "SELECT min(id) FROM trials WHERE median_us IS NOT NULL"
    change(filled, f"DELETE FROM measurements WHERE trial_id = ({first})")
    after = rows(autotune("history", "small.one", "--json"))
    assert [row["trial"] for row in after if row["event"] == "improvement"] != improved
    assert autotune("report", "small").code == 0


def test_history_ends_with_the_best(filled: Path, autotune: Command) -> None:
    found = rows(autotune("history", "small.one", "--json"))
    (best,) = rows(autotune("best", "--json"))
    assert [row["event"] for row in found][-1] == "finals"
    assert (found[-1]["time_us"], found[-1]["config"]) == (best["median_us"], best["config"])
    improvements = [row for row in found if row["event"] == "improvement"]
    times = [float(str(row["time_us"])) for row in improvements]
    assert len(times) > 1
    assert times == sorted(times, reverse=True)
    assert improvements[0]["over_before"] is None
    assert improvements[1]["over_before"] == pytest.approx(times[1] / times[0])


def test_nothing_is_stale_where_nothing_changed(filled: Path, autotune: Command) -> None:
    finished = autotune("stale", "--family-dir", "families", "--json")
    assert (rows(finished), finished.err) == ([], "0 of 1 best results may be out of date\n")


def doubts(finished: Finished) -> list[tuple[object, ...]]:
    """The change, its old and new value, and the basis of the comparison."""
    return [(row["changed"], row["was"], row["now"], row["compared_with"]) for row in rows(finished)]


def test_stale_tells_upgrades_and_changed_templates(filled: Path, autotune: Command) -> None:
    change(filled, "UPDATE environments SET driver = '1.0', toolkit = 'cc 1'")
    stale = ("stale", "small", "--family-dir", "families", "--json")
    assert doubts(autotune(*stale)) == [
        ("driver", "1.0", "none", "this machine"),
        ("toolkit", "cc 1", "none", "this machine"),
    ]
    change(filled, "UPDATE environments SET driver = 'none', toolkit = 'none'")
    write_family(filled.parent / "families", ('summary  = "One', 'summary  = "Only one'))
    assert doubts(autotune(*stale)) == [], "another comment, the same kernel"
    write_family(
        filled.parent / "families",
        ("[derived]", 'later = { values = [1, 2], doc = "a factor" }\n[derived]'),
        ("threads * turns", "threads * turns * later"),
    )
    assert doubts(autotune(*stale)) == [], "a parameter whose first value is what the family did before"
    for edit, words in (
        (("float sum = 0.0f", "float sum = 0.f"), "renders another kernel now"),
        (("outputs <= 512", "outputs <= 1"), "refuses the config now: a block computes at most 512 outputs"),
        (("values = [false, true]", "values = [2]"), "has other parameters or values now"),
    ):
        write_family(filled.parent / "families", edit)
        ((changed, was, now, against),) = doubts(autotune(*stale))
        assert (changed, against) == ("template", "the installed families")
        assert str(now).endswith(f", which {words}")
        assert str(now)[:12] != was
    assert doubts(autotune("stale", "--json"))[0][2] == "is not installed"


def test_stale_compares_an_absent_device_with_its_newest_run(filled: Path, autotune: Command) -> None:
    change(filled, "UPDATE devices SET kind = 'cuda', name = 'NVIDIA H999'")
    change(filled, "UPDATE measurements SET launch = 'graph'")
    stale = ("stale", "--family-dir", "families", "--json")
    assert doubts(autotune(*stale)) == []
    change(filled, "INSERT INTO environments VALUES (99, 'newer', 'none', '', '2100-01-01T00:00:00.000000Z')")
    change(filled, "INSERT INTO runs VALUES (99, 1, 99, '{}', '9', '2100-01-01T00:00:00.000000Z')")
    assert doubts(autotune(*stale)) == [("driver", "none", "newer", "its newest run")]
    assert doubts(autotune(*stale, "--device", "null")) == [("driver", "none", "newer", "its newest run")]


def test_short_times_with_launch_gaps_are_doubted_and_never_compared(filled: Path, autotune: Command) -> None:
    words = ("--family-dir", "families", "--json")
    (best,) = rows(autotune("best", "--json"))
    assert float(str(best["median_us"])) < 200, "the layer is short"
    change(filled, "UPDATE measurements SET launch = 'graph'")  # so that the null device times in another way
    found = rows(autotune("retime", "small", "--device", "null", *words))
    assert [(row["label"], row["after_over_before"]) for row in found] == [("remeasured", None)] * 3
    retimed = rows(autotune("history", "small", "--json"))[-3:]
    assert [(event["note"], event["over_before"]) for event in retimed] == [("remeasured", None)] * 3
    assert [row["label"] for row in rows(autotune("retime", "small", "--device", "null", *words))] == ["confirmed"] * 3
    change(filled, "UPDATE devices SET kind = 'cuda'")
    assert ("launch", "stream, with launch gaps", "graph", "how short kernels are timed") in doubts(
        autotune("stale", *words)
    )
    change(filled, "UPDATE measurements SET median_us = 1000 * median_us")
    change(filled, "UPDATE trials SET median_us = 1000 * median_us, ranking_median_us = 1000 * ranking_median_us")
    assert doubts(autotune("stale", *words)) == [], "of a long kernel a gap is nothing"


def test_retime_confirms_and_ends_the_doubt(filled: Path, autotune: Command) -> None:
    change(filled, "UPDATE environments SET driver = '1.0'")
    words = ("--family-dir", "families", "--json")
    assert doubts(autotune("stale", *words)) == [("driver", "1.0", "none", "this machine")]
    (best,) = rows(autotune("best", "--json"))
    finished = autotune("retime", "small", "--device", "null", *words)
    found = rows(finished)
    assert [row["label"] for row in found] == ["confirmed"] * 3
    assert finished.err.endswith("3 confirmed\n")
    assert found[0]["config"] == best["config"], "the winner is among them"
    times = [float(str(row["after_us"])) for row in found]
    assert times == sorted(times) == [row["before_us"] for row in found]
    assert {(row["driver_before"], row["driver"]) for row in found} == {("1.0", "none")}
    assert doubts(autotune("stale", *words)) == []
    events = rows(autotune("history", "small", "--json"))
    assert [row["note"] for row in events if row["event"] == "retime"] == ["confirmed"] * 3
    assert len(rows(autotune("retime", "--device", "null", "--best", "1", *words))) == 1


def test_retime_marks_what_moved_regressed_and_failed(filled: Path, autotune: Command) -> None:
    trials = rows(autotune("trials", "--outcome", "correct", "--sort", "median", "--json"))
    first, second, third = (row["number"] for row in trials[:3])
    for number, factor in ((first, 0.5), (second, 1.5)):
        for column in ("median_us", "ranking_median_us"):
            change(filled, f"UPDATE trials SET {column} = {column} * {factor} WHERE number = {number}")
    found = answered(3, autotune("retime", "--device", "null", "--family-dir", "families", "--best", "99", "--json"))
    labels = {row["trial"]: row["label"] for row in found}
    assert (labels[first], labels[second], labels[third]) == ("regressed", "moved", "confirmed")
    (regressed,) = (row for row in found if row["trial"] == first)
    assert regressed["after_over_before"] == pytest.approx(2.0)
    failed = answered(
        3, autotune("retime", "--device", "null:wrong=1", "--family-dir", "families", "--best", "1", "--json")
    )
    assert [row["label"] for row in failed] == ["failed"]
    assert str(failed[0]["message"]).startswith("wrong_result wrong: ")
    assert failed[0]["after_us"] is None
    (best,) = rows(autotune("best", "--json"))
    assert best["config"] != failed[0]["config"], "what fails is the best no more"


def test_an_imported_kernel_counts_once_it_is_retimed(filled: Path, autotune: Command) -> None:
    change(filled, "UPDATE trials SET origin = 'imported', ranking_median_us = NULL")
    change(filled, "UPDATE finals SET origin = 'imported'")
    assert [row["match"] for row in rows(autotune("best", "small", "--json"))] == ["none"]
    found = rows(autotune("retime", "--device", "null", "--family-dir", "families", "--best", "2", "--json"))
    assert [row["origin"] for row in found] == ["imported"] * 2
    (best,) = rows(autotune("best", "--json"))
    assert (best["config"], best["decided_by"]) == (found[0]["config"], "retime")


def test_merged_results_are_asked_about_and_count_once_retimed(folder: Path, tune: Command, autotune: Command) -> None:
    tune("--db", "other.db", "--trials", "40")
    tune("--trials", "1")
    (folder / "other.toml").write_text(
        changed((folder / "small.toml").read_text(), ('"small"', '"other"'), ("h = 9", "h = 7"))
    )
    autotune("tune", "other.toml", "--family-dir", "families", "--device", "null", "--db", "other.db")
    assert autotune("merge", "other.db").code == 0
    none = autotune("best", "other", "--json")
    assert [row["match"] for row in rows(none)] == ["none"]
    advice = "imported trials are ranked once they are re-timed here: run `autotune retime other`"
    assert none.err == f"autotune.db: {advice}\n"
    for words in (("why", "other"), ("export", "other", "--out", "out")):
        complaint = autotune(*words).complaint
        assert complaint.startswith("autotune.db: no ")
        assert complaint.endswith(f"; {advice}")
    assert autotune("report", "other", "--out", "other.html").code == 0
    assert "imported: counts once measured here" in (folder / "other.html").read_text()
    (finals,) = rows(autotune("history", "other", "--json"))
    assert str(finals["note"]).startswith("imported"), "and no improvement here"
    (row,) = rows(autotune("diff", "small", "small@2", "--json"))
    assert row["verdict"] == "faster", "a study that was merged can be compared"
    found = rows(autotune("retime", "--device", "null", "--family-dir", "families", "--json"))
    assert {(row["layer"], row["origin"]) for row in found} >= {("small.one", "imported"), ("other.one", "imported")}
    assert {row["label"] for row in found} == {"confirmed"}
    best = rows(autotune("best", "--json"))
    assert [(row["layer"], row["match"], row["origin"]) for row in best] == [
        ("small.one", "exact", "imported"),
        ("other.one", "exact", "imported"),
    ]
    assert best[0]["median_us"] == row["b_us"]
    assert "small.one on null: tiny wins" in autotune("why", "small.one", "--family-dir", "families").out


def test_devices_in_one_file_stay_apart(folder: Path, filled: Path, tune: Command, autotune: Command) -> None:
    change(filled, "UPDATE devices SET name = 'older', sm_count = 7, arch = 80")
    tune("--fresh")
    assert [row["device"] for row in rows(autotune("best", "small", "--json"))] == ["null", "older"]
    assert [row["match"] for row in rows(autotune("best", "small", "--device", "older", "--json"))] == ["exact"]
    for device in ("older", "null"):
        found = rows(autotune("why", "small.one", "--device", device, "--family-dir", "families", "--json"))
        assert {row["device"] for row in found} == {device}
    assert len([row for row in rows(autotune("why", "small.one", "--json")) if row["about"] == "winner"]) == 2
    (row,) = rows(autotune("diff", "older", "null", "--json"))
    assert (row["device_a"], row["device_b"], row["verdict"]) == ("older", "null", "same")
    events = rows(autotune("history", "small.one", "--json"))
    assert {row["device"] for row in events if row["event"] == "improvement"} == {"null", "older"}
    firsts = [row for row in events if row["event"] == "improvement" and row["over_before"] is None]
    assert len(firsts) == 2, "each device has its own line"
    found = rows(autotune("retime", "--device", "null", "--family-dir", "families", "--json"))
    assert {row["device"] for row in found} == {"null"}


def test_retime_says_what_it_cannot_do(filled: Path, autotune: Command) -> None:
    assert autotune("retime", "large", "--device", "null").complaint.startswith(
        "autotune.db: no study or layer 'large'"
    )
    missing = autotune("retime", "--device", "null", "--db", "none.db").complaint
    assert missing.startswith("none.db: no such file")
    assert not (filled.parent / "none.db").exists()
    change(filled, "DELETE FROM source_paragraphs")
    finished = autotune("retime", "--device", "null", "--json")
    assert answered(1, finished) == []
    assert "is not re-timed: its text is not stored, and tiny is not installed" in finished.err
    assert finished.err.endswith("autotune.db: nothing was re-timed, so nothing is known about the winners\n")
    again = rows(autotune("retime", "--device", "null", "--family-dir", "families", "--json"))
    assert {row["label"] for row in again} == {"confirmed"}, "rendered again, the very same kernels"
    change(filled, "UPDATE devices SET name = 'other'")
    finished = autotune("retime", "--device", "null")
    assert "small.one: no correct trial of null to re-time" in finished.err


def test_retime_does_not_launch_what_is_quarantined(filled: Path, autotune: Command) -> None:
    (best,) = rows(autotune("best", "--json"))
    change(
        filled,
        "INSERT INTO quarantine (device_id, environment_id, source_id, reason, message, created_at) SELECT device_id, "
        "environment_id, source_id, 'crash', 'twice', '2026-11-20T00:00:00.000000Z' FROM trials "
        f"JOIN sources ON sources.id = source_id WHERE hash = '{best['source_hash']}'",
    )
    finished = autotune("retime", "--device", "null", "--best", "1", "--json")
    assert answered(1, finished) == []
    assert "is not re-timed: it is quarantined" in finished.err


@pytest.mark.cxx
def test_retime_runs_kernels(folder: Path, autotune: Command) -> None:
    small = folder / "small.toml"
    small.write_text(changed(small.read_text(), ("trials = 10", "trials = 3\nmeasure.cache = 'hot'")))
    words = ("--family-dir", "families", "--device", "host")
    assert autotune("tune", "small.toml", *words).code == 0
    finished = autotune("retime", "small.one", *words, "--best", "2", "--json")
    assert finished.code in (0, 3), "whether it is as fast on a busy machine is another question"
    found = answered(finished.code, finished)
    assert len(found) == 2
    assert {row["label"] for row in found} <= {"confirmed", "moved", "regressed"}
    assert all(float(str(row["after_us"])) > 0 for row in found)
    assert len(rows(autotune("query", "SELECT * FROM retimes", "--json"))) == 2
