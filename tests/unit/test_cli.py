"""Every command as a user runs it: its output, its streams, its formats and its exit code."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import os
import pty
import re
import signal
import sqlite3
import subprocess
import sys
import time
import uuid
from contextlib import closing
from pathlib import Path

import pytest

from autotune import __version__
from autotune.dispatch.dispatcher import Dispatcher, PortfolioKernel
from autotune.dispatch.predicate import Predicate
from autotune.family.template_files import template_files
from autotune.store import Store, TemplateRecord
from autotune.study import Study
from autotune.trial import Outcome, Trial
from tests.fork_server import ForkServer
from tests.long_run import every
from tests.processes import MARK, removing_leftovers

from .store.builders import H200, config_of, correct, dispatched, open_scope, run_trial, source_of
from .tiny import SMALL, STUDY, Command, Finished, changed, run_module, write_family

JsonRow = dict[str, str | int | float | bool | list[object] | dict[str, object] | None]


def rows(finished: Finished) -> list[JsonRow]:
    """The rows of a `--json` answer, which is one array of objects and nothing else."""
    return answered(0, finished)


def answered(code: int, finished: Finished) -> list[JsonRow]:
    """The rows of a `--json` answer of a command that ended with this code."""
    assert finished.code == code, finished.err
    found: list[JsonRow] = json.loads(finished.out, parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))
    assert isinstance(found, list)
    assert all(isinstance(row, dict) for row in found)
    assert len({tuple(row) for row in found}) <= 1, "every row has the same keys"
    return found


def in_csv(value: object) -> str:
    """A value of a JSON object in its CSV form."""
    if isinstance(value, dict):
        return " ".join(f"{name}={part}" for name, part in value.items())
    return "" if value is None else str(value)


def table(finished: Finished) -> list[list[str]]:
    """The rows of a `--csv` answer."""
    assert finished.code == 0, finished.err
    return list(csv.reader(io.StringIO(finished.out)))


def test_help_and_version(autotune: Command) -> None:
    for word in ("--help", "-h"):
        finished = autotune(word)
        assert (finished.code, finished.err) == (0, "")
        for command in ("tune", "best", "trials", "query", "export", "templates", "check", "devices"):
            assert re.search(rf"^  {command} ", finished.out, re.MULTILINE)
            help_text = autotune(command, "--help")
            assert help_text.code == 0
            assert help_text.out.startswith(f"Usage: autotune {command} ")
    assert autotune("--version").out.startswith(f"autotune, version {__version__} (")


@pytest.mark.parametrize(
    "words",
    [
        ("tune",),
        ("nothing",),
        ("--nothing",),
        ("tune", "small.toml", "--nothing"),
        ("tune", "small.toml", "--trials", "0"),
        ("tune", "small.toml", "--trials", "many"),
        ("tune", "small.toml", "--time-budget", "0"),
        ("tune", "small.toml", "--seed", "-1"),
        ("tune", "small.toml", "--seed", str(2**63)),
        ("tune", "small.toml", "--jobs", "0"),
        ("tune", "small.toml", "--sampler", "none"),
        ("trials", "--sort", "colour"),
        ("trials", "--outcome", "happy"),
        ("trials", "--limit", "-1"),
        ("query",),
        ("export", "small"),
        ("export", "small", "--out", "out", "--accuracy", "fp23"),
        ("export", "small", "--out", "out", "--accuracy", "fp32", "--dispatcher"),
        ("export", "small", "--out", "out", "--admit", "fp32-class", "--dispatcher"),
        ("export", "small", "--out", "out", "--admit", "fp32-class", "--accuracy", "fp32"),
        ("check",),
        ("best", "small", "large"),
    ],
)
def test_wrong_usage_exits_with_2(words: tuple[str, ...], autotune: Command, folder: Path) -> None:
    finished = autotune(*words)
    assert finished.code == 2
    assert finished.out == ""
    assert finished.err.startswith("Usage: autotune ")
    assert finished.err.splitlines()[-1].startswith("Error: ")
    assert not (folder / "autotune.db").exists()


def test_tune_prints_the_best_and_says_on_standard_error_what_it_did(tune: Command, folder: Path) -> None:
    finished = tune()
    assert finished.code == 0
    lines = finished.err.splitlines()
    assert lines[0] == "device null: null (requested)"
    assert any(re.fullmatch(r"small\.one: 10/10 in \d+ s, best [\d.]+ us \(tiny\).*", line) for line in lines)
    assert any(line.startswith("small.one: 10 evaluated (10 now), ") for line in lines)
    assert "small.one" in finished.out
    assert "median_us" in finished.out
    assert (folder / "autotune.db").is_file(), "in the working directory"


def test_best_tells_rows_of_one_layer_apart(autotune: Command, folder: Path) -> None:
    with Store("autotune.db") as store:
        scope = open_scope(store)
        run_trial(store, scope, correct(0, 10.0))
        run_trial(store, scope, correct(1, 12.0, deterministic=False))
    assert [row["median_us"] for row in rows(autotune("best", "--json"))] == [10.0], "a slower one need not be told"
    assert "deterministic" not in autotune("best").out
    with Store("autotune.db") as store:
        run_trial(store, open_scope(store), correct(2, 9.0, deterministic=False))
        run_trial(store, open_scope(store, measurement_mode="hot"), correct(3, 8.0))
    told = [set(line.split()) for line in autotune("best").out.splitlines() if "lenet.conv1" in line]
    apart = sorted(" ".join(sorted({"yes", "no", "cold", "hot"} & row)) for row in told)
    assert apart == ["cold no", "cold yes", "hot yes"]


def test_output_into_a_pipe_is_plain(tune: Command, folder: Path) -> None:
    finished = tune("--trials", "40")
    for text in (finished.out, finished.err):
        assert "\x1b" not in text
        assert "\r" not in text
    assert len(finished.err.splitlines()) < 20, "and progress is a few lines"
    (line,) = [line for line in finished.out.splitlines() if "small.one" in line]
    for word in ("threads=", "turns=", "order=", "fast="):
        assert word in line, "a row is one line, however long"


def test_json_is_one_array_with_full_precision(tune: Command, autotune: Command) -> None:
    (best,) = rows(tune("--json"))
    assert rows(autotune("best", "--json")) == [best]
    assert best["layer"] == "small.one"
    assert best["problem"] == str(SMALL)
    assert best["template"] == "tiny"
    assert best["deterministic"] is True
    assert best["floor_us"] is None
    with Store("autotune.db", create=False) as store:
        (stored,) = store.best.list("small")
    assert best["median_us"] == stored.median_us
    assert best["gflops"] == stored.gflops
    assert len(repr(best["median_us"])) > 10
    assert best["config"] == stored.row.trial.config.params


def test_csv_has_the_same_columns_and_values(filled: Path, autotune: Command) -> None:
    for command in (("best",), ("trials",), ("query", "SELECT number, outcome, median_us FROM results")):
        objects = rows(autotune(*command, "--json"))
        header, *lines = table(autotune(*command, "--csv"))
        assert objects
        assert header == list(objects[0])
        expected = [list(map(in_csv, row.values())) for row in objects]
        assert lines == expected


def test_every_json_key_that_is_a_time_names_its_unit(filled: Path, autotune: Command) -> None:
    for command in ("best", "trials"):
        for key, value in rows(autotune(command, "--json"))[0].items():
            if isinstance(value, float) and ("median" in key or "compile" in key or key.startswith("q")):
                assert key.endswith("_us"), key


def test_tuning_again_resumes(tune: Command, autotune: Command) -> None:
    first = rows(tune("--json"))
    before = rows(autotune("trials", "--json"))
    again = tune("--json")
    assert rows(again) == first
    assert rows(autotune("trials", "--json")) == before
    assert "small.one: 10 evaluated (0 now)" in again.err
    more = tune("--trials", "14")
    assert "small.one: 14 evaluated (4 now)" in more.err


def test_fresh_starts_anew(tune: Command, autotune: Command) -> None:
    tune()
    finished = tune("--fresh")
    assert "small.one: 10 evaluated (10 now)" in finished.err
    generations = rows(autotune("query", "SELECT generation FROM studies ORDER BY generation", "--json"))
    assert generations == [{"generation": 1}, {"generation": 2}]


def test_options_override_the_study(tune: Command, autotune: Command, folder: Path) -> None:
    write_family(folder / "families", name="other")
    finished = tune("--trials", "3", "--seed", "9", "--family", "other", "--layer", "small.one", "--db", "o.db")
    assert "small.one: 3 evaluated (3 now)" in finished.err
    trials = [row for row in rows(autotune("trials", "--db", "o.db", "--json")) if row["outcome"] == "correct"]
    assert {row["template"] for row in trials} == {"other"}
    assert rows(autotune("query", "SELECT seed FROM studies", "--db", "o.db", "--json")) == [{"seed": 9}]


def test_a_time_budget_ends_a_run(folder: Path, autotune: Command) -> None:
    words = ("--family-dir", "families", "--device", "null:delay_ms=60", "--time-budget", "0.3", "--trials", "40")
    finished = autotune("tune", "small.toml", *words)
    assert finished.code == 0
    assert re.search(r"small\.one: [123]?\d evaluated .* stopped: time", finished.err)


def test_failures_are_told_by_outcome(autotune: Command) -> None:
    words = ("--family-dir", "families", "--device", "null:wrong=0.3,hang=0.2", "--trials", "40")
    finished = autotune("tune", "small.toml", *words)
    assert finished.code == 0, "a failing config is no failing run"
    summary = next(line for line in finished.err.splitlines() if line.startswith("small.one: 40 evaluated"))
    assert re.search(r"\d+ wrong_result", summary)
    assert re.search(r"\d+ timeout", summary)
    wrong = rows(autotune("trials", "small", "--outcome", "wrong_result", "--json"))
    assert wrong
    assert {row["reason"] for row in wrong} == {"wrong"}
    assert all(row["median_us"] is None for row in wrong)


def test_best_answers_for_a_study_a_layer_a_file_or_everything(filled: Path, autotune: Command) -> None:
    everything = rows(autotune("best", "--json"))
    for what in ("small", "small.one", "one", "small.toml"):
        assert rows(autotune("best", what, "--json")) == everything


def test_trials_are_filtered_sorted_and_limited(filled: Path, autotune: Command) -> None:
    everything = rows(autotune("trials", "--json"))
    assert [row["number"] for row in everything] == list(range(len(everything)))
    correct = rows(autotune("trials", "small.one", "--outcome", "correct", "--sort", "median", "--json"))
    times = [row["median_us"] for row in correct]
    assert all(isinstance(time_us, float) for time_us in times)
    assert times == sorted(times, key=lambda time_us: float(str(time_us)))
    assert len(correct) == sum(row["outcome"] == "correct" for row in everything) < len(everything)
    assert rows(autotune("trials", "--outcome", "correct", "--sort", "median", "--limit", "3", "--json")) == correct[:3]


def test_failed_trials_are_shown_with_their_words_and_kernels(filled: Path, autotune: Command) -> None:
    wrong = rows(autotune("trials", "--outcome", "wrong_result", "--json"))
    assert wrong
    table = autotune("trials", "--outcome", "wrong_result").out
    assert "the null device simulates a wrong result" in table
    assert "median_us" not in table, "no column of times that failed trials do not have"
    for row in wrong:
        kernel = autotune("source", "small.one", "--trial", row["number"]).out
        assert kernel.startswith(f"// small.one trial {row['number']}: wrong_result / wrong\n// tiny ")
        assert 'extern "C" __global__' in kernel


def test_query_answers_in_every_form(filled: Path, autotune: Command) -> None:
    sql = "SELECT 1 AS a, 2.5 AS b, NULL AS c, 'x' AS d"
    assert rows(autotune("query", sql, "--json")) == [{"a": 1, "b": 2.5, "c": None, "d": "x"}]
    assert table(autotune("query", sql, "--csv")) == [["a", "b", "c", "d"], ["1", "2.5", "", "x"]]
    header, *_, line = [words for words in map(str.split, autotune("query", sql).out.splitlines()) if words]
    assert (header, line) == (["a", "b", "c", "d"], ["1", "2.5", "-", "x"])
    assert rows(autotune("query", "SELECT 1 WHERE 0", "--json")) == []
    assert table(autotune("query", "SELECT 1 AS a WHERE 0", "--csv")) == [["a"]]


def test_what_sql_can_yield_is_still_json(filled: Path, autotune: Command) -> None:
    found = rows(autotune("query", "SELECT 9e999 AS a, -9e999 AS b, x'00ff' AS c, 'two\nlines' AS d", "--json"))
    assert found == [{"a": None, "b": None, "c": "b'\\x00\\xff'", "d": "two\nlines"}]
    assert rows(autotune("query", "SELECT 1 AS a, 2 AS a, 3 AS a", "--json")) == [{"a": 1, "a_2": 2, "a_3": 3}]


def test_export_writes_each_layers_kernel_with_its_provenance(folder: Path, filled: Path, autotune: Command) -> None:
    (best,) = rows(autotune("best", "--json"))
    finished = autotune("export", "small", "--out", "out/deep", "--no-proof")
    assert (finished.code, finished.out) == (0, "out/deep/small.one.null.cu\n")
    text = (folder / finished.out.strip()).read_text()
    config = best["config"]
    assert isinstance(config, dict)
    for word in (
        "small.one: conv2d n3 c2 9x8 k4 3x3 f32 nchw",
        f"autotune {__version__} from template tiny",
        "config        " + " ".join(f"{name}={value}" for name, value in config.items()),
        f"median {best['median_us']:.2f} us",
        "; invented, this kernel never ran",
        f"source hash   {best['source_hash']}",
        "NOT TUNED FOR A GPU",
        "conv2d_tiny(x, w, y, n) grid ",
        'extern "C" __global__ void conv2d_tiny(',
    ):
        assert word in text
    assert "not tuned: the null device runs no kernels; its times are invented: small.one" in finished.err
    assert "null null, not a GPU, the time is invented" in (folder / "out/deep/README.md").read_text()
    again = autotune("export", "one", "--out", "out/deep", "--no-proof")
    assert again.code == 0
    assert (folder / again.out.strip()).read_text() == text


def test_layers_without_a_kernel_are_named_by_an_export(folder: Path, autotune: Command) -> None:
    text = (folder / "small.toml").read_text()
    second = text[text.index("[[layer]]") :].replace("one", "two").replace("k = 4", "k = 5")
    (folder / "small.toml").write_text(text + second)
    half = autotune("tune", "small.toml", "--family-dir", "families", "--device", "null", "--layer", "one")
    assert half.code == 0, half.err
    finished = autotune("export", "small", "--out", "out", "--no-proof")
    assert (finished.code, finished.out) == (0, "out/small.one.null.cu\n")
    assert "left out, no such kernel in autotune.db: small.two" in finished.err


@pytest.mark.cxx
@pytest.mark.long
def test_exported_folder_proves_itself(folder: Path, filled: Path, autotune: Command) -> None:
    out = "the $HOME of 'my' kernels"
    finished = autotune("export", "small", "--out", out)
    assert (finished.code, finished.out) == (0, f"{out}/small.one.null.cu\n")
    proof = (folder / out / "proof.txt").read_text().splitlines()
    assert proof[0] == "NOT TUNED: the null device runs no kernels; its times are invented: small.one"
    assert "self-test passed" in proof
    assert "small.one: right at n = 3 and 1" in finished.err
    stages = [line.removesuffix(" ...") for line in finished.err.splitlines() if line.endswith(" ...")]
    assert "building the library for the CPU" in stages
    assert stages.index("running its self-test") == stages.index("building the library for the CPU") + 1
    assert autotune("export", "small", "--out", out, "--no-proof", "--arch", "sm_80,90").code == 0
    assert 'set(CONV2D_DEFAULT_ARCHS "80;90")' in (folder / out / "kernels.cmake").read_text()
    assert not (folder / out / "proof.txt").exists(), "what was proven is no longer what lies there"


@pytest.mark.cxx
def test_an_export_that_is_terminated_leaves_no_temporary_file(
    folder: Path, filled: Path, fork_server: ForkServer
) -> None:
    temporary, mark = folder / "tmp", uuid.uuid4().hex
    temporary.mkdir()
    run = fork_server.start(folder, "export", "small", "--out", "out", env={"TMPDIR": str(temporary), MARK: mark})
    while not list(temporary.glob("autotune-*")):
        assert not run.ended
        time.sleep(0.05)
    run.send_signal(signal.SIGTERM)
    ended = run.finish()
    assert ended.code == 128 + signal.SIGTERM
    assert ended.err.endswith("autotune: ended by SIGTERM\n")
    assert "Traceback" not in ended.err
    assert not list(temporary.iterdir())
    assert removing_leftovers(mark, 10.0)


@pytest.mark.parametrize("archs", ["hopper", "90,x", "9", "", "-90"])
def test_architectures_that_are_none(archs: str, folder: Path, filled: Path, autotune: Command) -> None:
    finished = autotune("export", "small", "--out", "out", "--arch", archs)
    assert finished.code == 2
    assert "expected compute capabilities times ten, such as 90 or 80,90" in finished.err
    assert not (folder / "out").exists()


def test_export_of_a_gpu_that_has_no_kernels(folder: Path, filled: Path, autotune: Command) -> None:
    complaint = autotune("export", "small", "--out", "out", "--device", "H200").complaint
    assert complaint == "H200: no recorded device of this name; there are null; or give cuda:N, host or null"
    assert not (folder / "out").exists()


def test_kernels_of_several_gpus_are_not_mixed(folder: Path, autotune: Command) -> None:
    source = source_of(config_of(1))
    with Store("gpus.db") as store:
        for device in (H200, dataclasses.replace(H200, name="NVIDIA A100", arch=80)):
            run_trial(store, open_scope(store, device=device), correct(1, 5.0, source=source), source)
    complaint = autotune("export", "lenet", "--db", "gpus.db", "--out", "out").complaint
    assert complaint == (
        "lenet: expected kernels of one GPU; the database has NVIDIA A100, NVIDIA H200: name it with --device"
    )
    one = autotune("export", "lenet", "--db", "gpus.db", "--out", "out", "--device", "h200").complaint
    assert "one GPU" not in one, "the builders' header is none, but the GPU was found"


def test_what_a_dispatcher_chooses_is_exported(folder: Path, filled: Path, autotune: Command) -> None:
    words = ("export", "small", "--out", "out", "--dispatcher", "--no-proof")
    complaint = autotune(*words).complaint
    missing = "no dispatcher was made of all layers of small"
    assert complaint == f"autotune.db: {missing}; run `autotune dispatch STUDY` first"
    with Store("autotune.db") as store:
        (best,) = store.best.list("small")
        slowest = store.trials.list("small", outcome="correct", sort="median")[-1]
        assert slowest.trial.config != best.row.trial.config
        made = Dispatcher(
            (),
            (PortfolioKernel("few", slowest.trial.config, Predicate(())),),
            PortfolioKernel("default", best.row.trial.config, Predicate(())),
            "few",
        )
        (study,) = store.studies.list()
        layers = (best.layer, dataclasses.replace(best.layer, name="other", problem=best.layer.problem.with_runtime(1)))
        key = store.studies.begin(Study(study.name, layers, text=study.text, seed=study.seed))
        scope = store.scopes.open_set(
            key,
            layers,
            best.row.device,
            best.row.environment,
            best.row.measurement_mode,
            TemplateRecord("dispatch", "0", ""),
        )
        store.dispatchers.add_trial(scope, Trial(0, made.config(), Outcome.CORRECT), 1.0)
        rows = (dispatched(layers[0], "few"), dispatched(layers[1], None))
        store.dispatchers.add(scope, 0, made.to_json(), rows)
    finished = autotune(*words)
    assert (finished.code, finished.out) == (0, "out/small.one.null.cu\n")
    assert finished.err.startswith("left out, no kernel of the dispatcher supports it: small.other\n")
    text = (folder / "out" / "small.one.null.cu").read_text()
    assert " ".join(f"{name}={value}" for name, value in slowest.trial.config.pairs) in text
    assert "always: few" in (folder / "out" / "dispatcher.h").read_text()
    (folder / "out" / "mine.txt").write_text("not exported")
    assert autotune("export", "small", "--out", "out", "--no-proof").code == 0
    assert not (folder / "out" / "dispatcher.h").exists(), "it is the earlier export's alone"
    assert (folder / "out" / "mine.txt").read_text() == "not exported"
    assert (folder / "out" / "README.md").read_text().startswith("# conv2d kernels\n")
    raw = sqlite3.connect("autotune.db")
    raw.execute("UPDATE dispatchers SET record = '{}'")
    raw.commit()
    raw.close()
    for unread in (words, ("dispatch", "small", "--explain")):
        complaint = autotune(*unread).complaint
        assert complaint.startswith("autotune.db: a stored dispatcher cannot be read (dispatcher: its record")


def test_proof_without_a_compiler(
    folder: Path, filled: Path, autotune: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CXX", raising=False)
    finished = autotune("export", "small", "--out", "out")
    assert (finished.code, finished.out) == (1, "out/small.one.null.cu\n")
    assert "\nautotune: no C++ compiler found; " in finished.err
    assert finished.err.endswith("; or leave the proof out with --no-proof\n")


@pytest.mark.parametrize("width", [40, 80])
def test_a_terminal_too_narrow_for_a_table_gets_lines(
    width: int, autotune: Command, filled: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"TTY_COMPATIBLE": "1", "COLUMNS": str(width), "TERM": "xterm"}.items():
        monkeypatch.setenv(name, value)
    lines = re.sub(r"\x1b\[[\d;]*m", "", autotune("trials", "--limit", "3", "--wide").out).splitlines()
    assert max(len(line) for line in lines if not re.search(r"\b[0-9a-f]{64}$", line)) <= width, "but for hashes"
    words = " ".join(lines).split()
    assert words.count("small.one") == 3
    assert sum(word.startswith("threads=") for word in words) == 3, "no word is broken"
    assert words.count("median_us") == 3


def test_families_are_a_table_of_100_columns(autotune: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"TTY_COMPATIBLE": "1", "COLUMNS": "100", "TERM": "xterm"}.items():
        monkeypatch.setenv(name, value)
    lines = re.sub(r"\x1b\[[\d;]*m", "", autotune("templates").out).splitlines()
    assert max(map(len, lines)) <= 100
    first = [line for line in lines if line.split(" ")[0] in template_files()]
    assert len(first) == len(template_files())
    assert len(lines) <= 3 * len(first), "a family takes two or three lines"


def test_templates_are_listed_and_described(autotune: Command, folder: Path) -> None:
    listed = rows(autotune("templates", "--family-dir", "families", "--json"))
    assert {row["name"] for row in listed} == {*template_files(), "tiny"}
    assert next(row for row in listed if row["name"] == "tiny")["params"] == 4
    text = autotune("templates", "tiny", "--family-dir", "families").out
    for word in (
        "One output a thread",
        "threads a block",
        "64 32 128 256",
        "a block computes at most 512 outputs",
        "fp32",
        "outputs = threads * turns",
        "stage conv2d_tiny(x, w, y, n):",
        "block (threads, 1, 1), dynamic shared memory 0 bytes",
    ):
        assert word in text
    params = rows(autotune("templates", "tiny", "--family-dir", "families", "--json"))
    assert [row["param"] for row in params] == ["threads", "turns", "order", "fast"]
    assert autotune("templates", "families/tiny.cu.j2").out == text, "a file does as well as a name"


@pytest.mark.cxx
@pytest.mark.long
def test_check_verifies_configs(autotune: Command, folder: Path) -> None:
    words = ("--family-dir", "families", "--device", "host", "--configs", "4")
    finished = autotune("check", "tiny", *words, "--json")
    found = rows(finished)
    assert len(found) == 4
    assert [row for row in found if row["outcome"] != "correct"] == []
    assert len({row["problem"] for row in found}) > 2
    write_family(folder / "families", ("y[at] = sum;", "y[at] = sum + 1.0f;"))
    failing = autotune("check", "tiny", *words)
    assert failing.code == 1
    assert failing.err.splitlines()[-1] == "autotune: tiny: 4 of 4 configs failed; each kind is shown above"
    assert "wrong_result" in failing.out
    assert "Not exercised:" in failing.out


@pytest.mark.parametrize("device", ["null", "null:wrong=1"])
def test_check_refuses_a_device_that_runs_nothing(device: str, autotune: Command) -> None:
    complaint = autotune("check", "tiny", "--family-dir", "families", "--device", device).complaint
    assert complaint == "null: runs no kernels, so it cannot verify any; give --device host, host:check or cuda:N"


@pytest.mark.cxx
def test_a_family_without_a_feasible_config_is_told_why(autotune: Command, folder: Path) -> None:
    write_family(folder / "families", ("outputs <= 512", "outputs <= 5"))
    complaint = autotune("check", "families/tiny.cu.j2", "--device", "host").err.splitlines()[-1]
    assert complaint == (
        "autotune: families/tiny.cu.j2: no config is feasible on any problem; "
        "the first values of all parameters are rejected on n3 c3 13x11 k5 3x3 f32 nchw: "
        "a block computes at most 512 outputs"
    )


@pytest.mark.cxx
def test_a_family_that_supports_no_derived_problem_is_told(autotune: Command, folder: Path) -> None:
    write_family(folder / "families", ("groups == 1", "groups == 999"))
    complaint = autotune("check", "families/tiny.cu.j2", "--device", "host").err.splitlines()[-1]
    assert complaint.startswith("autotune: families/tiny.cu.j2: supports: holds for none of the problems that a check")


def test_a_strangers_family_goes_the_whole_line(tune: Command, autotune: Command, folder: Path) -> None:
    write_family(folder / "families", ("One output a thread and turn", "A stranger's own"), name="stranger")
    assert "A stranger's own" in autotune("templates", "stranger", "--family-dir", "families").out
    (best,) = rows(tune("--family", "stranger", "--json"))
    assert best["template"] == "stranger"
    assert autotune("export", "small", "--out", "out", "--no-proof").code == 0
    assert "from template stranger" in (folder / "out" / "small.one.null.cu").read_text()


def test_families_of_an_operation_lie_flat_or_in_its_folder(autotune: Command, folder: Path) -> None:
    (folder / "kernels" / "conv2d").mkdir(parents=True)
    write_family(folder / "kernels", name="flat")
    write_family(folder / "kernels" / "conv2d", name="inside")
    names = [row["name"] for row in rows(autotune("templates", "--family-dir", "kernels", "--json"))]
    assert names[-2:] == ["flat", "inside"]
    write_family(folder / "kernels" / "conv2d", name="flat")
    assert "a family named 'flat' exists already" in autotune("templates", "--family-dir", "kernels").complaint


@pytest.mark.cxx
def test_devices_lists_the_host(autotune: Command, folder: Path) -> None:
    finished = autotune("devices", "--json")
    host = next(row for row in rows(finished) if row["name"] == "host")
    assert host["arch"] == 90
    assert isinstance(host["sm_count"], int)
    assert host["sm_count"] >= 1
    elsewhere = {row["name"] for row in rows(autotune("devices", "--rates", "--json", "--db", "recorded-networks"))}
    assert "NVIDIA H200" in elsewhere, "rates of devices that are not here are shown by the devices' names"
    (folder / "autotune.db").write_text("no database\n" * 100)
    assert autotune("devices").complaint.startswith("autotune.db: not an SQLite file; ")


@pytest.mark.cxx
def test_the_host_is_calibrated_and_its_rates_say_how(autotune: Command) -> None:
    calibrated = autotune("devices", "--calibrate", "--rates", "--json")
    found = [row for row in rows(calibrated) if row["name"] == "host"]
    assert [(row["rate"], row["method"], row["unit"], row["bounds"]) for row in found] == [
        ("copy", "16 bytes a thread", "GB/s", True),
        ("read", "4 x 16 bytes a thread, 8 blocks an SM", "GB/s", True),
        ("fill", "16 bytes a thread", "GB/s", True),
        ("fp32", "FFMA", "TFLOP/s", True),
    ]
    assert all(float(str(row["measured"])) > 0 for row in found)
    assert "cuBLAS" not in calibrated.err, "a host has no tensor cores to cross-check"


@pytest.mark.parametrize("words", every(4, [("best",), ("best", "--json"), ("templates", "direct"), ("--help",)]))
def test_a_reader_that_went_away_is_no_complaint(words: tuple[str, ...], folder: Path, filled: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, "-m", "autotune", *words], cwd=folder, stdout=writer, stderr=subprocess.PIPE, check=False
    )
    os.close(writer)
    assert (done.returncode, done.stderr) == (128 + signal.SIGPIPE, b""), "as `head` leaves other programs"


@pytest.mark.parametrize("words", every(3, [("best",), ("trials", "--json"), ("--help",)]))
def test_output_onto_a_full_disk_is_one_line(words: tuple[str, ...], folder: Path, filled: Path) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "autotune", *words], cwd=folder, stdout=full, stderr=subprocess.PIPE, check=False
        )
    assert done.returncode == 1
    assert done.stderr == b"autotune: the disk is full; make room and run the command again\n"


def test_output_may_be_closed(folder: Path, filled: Path) -> None:
    before = filled.read_bytes()
    closed = [sys.executable, "-c", "import os, sys; os.close(1); os.execv(sys.executable, sys.argv[1:])"]
    words = [sys.executable, "-m", "autotune", "trials", "--json"]
    done = subprocess.run([*closed, *words], cwd=folder, capture_output=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    assert filled.read_bytes() == before


def test_what_an_encoding_lacks_is_escaped(folder: Path, autotune: Command) -> None:
    (folder / "small.toml").write_text(changed(STUDY, ('"one"', '"größe"'), ("trials = 10", "trials = 2")))
    assert autotune("tune", "small.toml", "--device", "null", "--family", "direct").code == 0
    finished = run_module(folder, "best", env={"PYTHONIOENCODING": "ascii"})
    assert (finished.code, finished.err) == (0, "")
    assert "small.gr\\xf6\\xdfe" in finished.out


def test_a_terminal_that_goes_away_ends_a_run_in_order(folder: Path, fork_server: ForkServer) -> None:
    words = ("--family-dir", "families", "--device", "null:delay_ms=400", "--trials", "40")  # 16 s if it continued
    run = fork_server.start(folder, "tune", "small.toml", *words)
    run.wait_for("small.one: 1/40")
    assert not run.ended
    run.send_signal(signal.SIGHUP)
    ended = run.finish()
    assert ended.code == 128 + signal.SIGHUP, ended.err
    assert not list(folder.glob("autotune.db-*")), "the database was closed"


def test_the_module_and_the_script_are_the_same(folder: Path, filled: Path) -> None:
    script = Path(sys.executable).with_name("autotune")
    done = subprocess.run([script, "best", "--json"], cwd=folder, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == rows(run_module(folder, "best", "--json"))


@pytest.mark.cxx
def test_without_a_device_the_one_taken_is_named_with_the_reason(folder: Path, fork_server: ForkServer) -> None:
    finished = fork_server.run(
        folder, "check", "families/tiny.cu.j2", "--configs", "1", env={"CUDA_VISIBLE_DEVICES": ""}
    )
    assert finished.code == 0, finished.err
    first = finished.err.splitlines()[0]
    assert first.startswith("device host: ")
    assert "no CUDA device can be used: " in first
    assert first.endswith("; a CPU's ranking of kernels says nothing about a GPU's")


def test_without_a_compiler_it_says_how_to_get_one(folder: Path, fork_server: ForkServer) -> None:
    environ = {"PATH": "/nowhere", "CXX": ""}
    complaint = fork_server.run(folder, "check", "direct", "--device", "host", env=environ).complaint
    assert complaint == "no C++ compiler found; install one (Debian: apt-get install g++) or set CXX to one"


SLOW = ("--family-dir", "families", "--device", "null:delay_ms=100", "--trials", "40")


def test_a_terminal_gets_a_progress_bar(folder: Path, fork_server: ForkServer) -> None:
    ours, theirs = pty.openpty()
    environ = {"TERM": "xterm", "COLUMNS": "120"}
    run = fork_server.start(folder, "tune", "small.toml", *SLOW[:-1], "12", env=environ, err=theirs)
    os.close(theirs)
    shown = b""
    while True:
        try:
            part = os.read(ours, 65536)
        except OSError:  # how reading a terminal ends
            break
        if not part:
            break
        shown += part
    os.close(ours)
    assert run.finish().code == 0
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown.decode())
    assert "small.one" in text
    assert "12/12" in text
    assert re.search(r"best [\d.]+ us \(tiny\)", text)
    assert "\x1b[" in shown.decode()


def test_the_classes_there_are_follow_an_answer_without_the_asked_one(filled: Path, autotune: Command) -> None:
    answer = autotune("best", "small", "--accuracy", "tf32")
    layers = [str(row["layer"]) for row in rows(autotune("best", "small", "--json"))]
    assert answer.err == f"autotune.db: no tf32 kernel of {', '.join(layers)}; there are kernels of class fp32\n"
    assert not autotune("best", "small", "--accuracy", "fp32").err


def test_a_class_without_kernels_is_no_reason_to_retime_bundled_results(autotune: Command) -> None:
    answer = autotune("best", "lenet-k5.conv1", "--db", "recorded", "--accuracy", "fp64")
    there = "no fp64 kernel of lenet-k5.conv1; there are kernels of class fp32, fp32-3xtf32, tf32"
    assert answer.err == f"recorded: {there}\n"


def test_the_recorded_results_can_be_asked(autotune: Command) -> None:
    recorded = sorted((Path(__file__).parents[2] / "studies" / "recorded").glob("*.db"))
    if not recorded:
        pytest.skip("no recorded results are shipped yet")
    for path in recorded:
        before = path.read_bytes()
        assert before[18:20] == b"\x01\x01", f"{path.name} is in WAL mode: reading it writes files next to it"
        assert all(row["median_us"] for row in rows(autotune("best", "--db", path, "--json")))
        assert rows(autotune("trials", "--db", path, "--limit", "2", "--json"))
        assert path.read_bytes() == before
        assert not path.with_name(f"{path.name}-wal").exists()


def test_what_is_asked_is_only_read(folder: Path, filled: Path, autotune: Command) -> None:
    before = {path: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    for command in (
        ("best",),
        ("trials",),
        ("query", "SELECT 1"),
        ("export", "small", "--out", "out", "--no-proof"),
        ("clean",),
    ):
        assert autotune(*command).code == 0
    after = {path: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    assert after == before
    with closing(sqlite3.connect(filled)) as raw, raw:
        assert raw.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    raw.close()


def test_finals_can_be_held_again(folder: Path, tune: Command, autotune: Command) -> None:
    tune()
    before = rows(autotune("trials", "--json"))
    finished = autotune("compare", "small.toml", "--family-dir", "families", "--device", "null")
    assert finished.code == 0
    assert "stopped: finals only" in finished.err
    assert "against the starting config" in finished.err
    assert rows(autotune("trials", "--json")) == before
    assert rows(autotune("query", "SELECT count(*) AS held FROM finals", "--json")) == [{"held": 2}]


def test_upkeep_of_an_empty_house(filled: Path, autotune: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(filled.parent / "cache"))
    folder = f"{filled.parent}/cache/autotune/binaries"
    held = f"0 compiled kernels (0.0 MB) in {folder}\n0 kernels quarantined in autotune.db\n"
    assert autotune("clean").out == held
    assert autotune("clean", "--cache").out == f"0 compiled kernels (0.0 MB) removed from {folder}\n"
    assert autotune("clean", "--quarantine").out == "0 kernels released in autotune.db\n"


def test_what_lies_here_hides_no_shipped_study(folder: Path, autotune: Command) -> None:
    shipped = autotune("studies", "--json").out
    (folder / "quickstart").mkdir()
    (folder / "gemm").write_text("a program")
    assert autotune("studies", "--json").out == shipped
    assert autotune("tune", "quickstart", "--device", "null", "--trials", "1").code == 0
    assert "gemm: is not TOML" in autotune("tune", "gemm", "--device", "null").complaint


def test_a_misspelt_layer_or_family_is_named(filled: Path, autotune: Command) -> None:
    layer = rows(autotune("trials", "--json"))[0]["layer"]
    said = f"--layer {layer}x: autotune.db has no such name (did you mean {layer!r}?)"
    for words in (("trials", "--json"), ("history", "small", "--json")):
        asked = autotune(*words, "--layer", f"{layer}x")
        assert (asked.code, json.loads(asked.out), asked.err.splitlines()[0]) == (0, [], said)
    assert "--family tinny: autotune.db has no such name" in autotune("trials", "--family", "tinny").err
    assert "no such name" not in autotune("trials", "--family", "tiny", "--outcome", "timeout").err


def test_help_is_printed_without_the_libraries_of_a_run() -> None:
    script = (
        "import sys; from autotune.cli import cli; cli(['best', '--help'], standalone_mode=False); "
        "print(sorted({'numpy', 'optuna', 'sqlalchemy'} & sys.modules.keys()))"
    )
    finished = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert finished.stdout.endswith("\n[]\n")
