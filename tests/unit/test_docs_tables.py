"""The docs' commands on the recorded results work.

A database is also recorded on the null device with the recording tool, so that commands about ladders and dispatchers
have results even if the bundled database has none.
"""

from __future__ import annotations

import csv
import re
import shlex
from collections.abc import Sequence
from pathlib import Path

import pytest

from autotune.store import Store
from tests.benchmarks.record_database import main as record
from tests.fork_server import ForkServer
from tests.long_run import long_run

from .store.builders import PROFILE
from .tiny import Command

ROOT = Path(__file__).parents[2]
PAGES = sorted([*(ROOT / "docs").glob("*.md"), ROOT / "README.md"])
SHIPPED = "studies/recorded/h200.db"
THRESHOLDS, RULES = (
    (ROOT / "tests" / "data" / f"{name}.sql").read_text() for name in ("dispatch-40-thresholds", "report-rules")
)
"""the statements of docs/dispatch.md"""
INLINE = re.compile(r"`(autotune [^`]+)`")


@pytest.fixture(scope="module")
def rehearsal(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database from the recording tool, with runs on the null device and a profile of each kernel."""
    folder = tmp_path_factory.mktemp("recording")
    words = [
        "--device",
        "null",
        "--no-profile",
        "--steps",
        "ladder,dispatch",
        "--reports",
        "000",
        "--ladder-trials",
        "1",
    ]
    small = folder / "recorded.db"
    assert record([*words, "--db", str(folder / "working.db"), "--out", str(small)]) == 0
    with Store(small) as store:
        for row in store.trials.list("report-000", outcome="correct"):
            store.profiles.add(row, row.device, row.environment, [PROFILE])
    return small


def commands() -> list[str]:
    """Every command in the docs that reads the recorded results, each once, except commands with STUDY."""
    found = [
        " ".join(command.split())
        for page in PAGES
        for command in INLINE.findall(page.read_text())
        if re.search(r"--db (studies/recorded/|recorded(-\w+)?$)", command) and "STUDY" not in command
    ]
    return list(dict.fromkeys(found))


def slow(command: str) -> bool:
    """Whether a command compiles several kernels, as proofs do."""
    return command.split()[1] == "export"


COMMANDS = commands()


@pytest.mark.parametrize(
    "command",
    [
        *(command for command in COMMANDS if not slow(command)),
        *long_run(*((command,) for command in COMMANDS if slow(command))),
    ],
)
def test_each_command_on_the_recorded_results_answers(
    command: str, folder: Path, autotune: Command, request: pytest.FixtureRequest
) -> None:
    (folder / "studies").symlink_to(ROOT / "studies")
    with Store(ROOT / SHIPPED, create=False) as store:
        of_reports = any(row.name.startswith("report-") for row in store.studies.list())
    path = SHIPPED if of_reports or "reports/" not in command else str(request.getfixturevalue("rehearsal"))
    done = autotune(*(word.replace(SHIPPED, path) for word in shlex.split(command)[1:]))
    assert done.code == 0, done.err
    if command.split()[1] == "report":
        assert Path(done.out.strip()).is_file()
    else:
        assert len(done.out.split()) >= 3


def test_the_docs_ask_the_recorded_results() -> None:
    asked = {command.split()[1] for command in commands()}
    assert {"best", "query", "ladder", "export", "why"} <= asked


def statements(page: str) -> list[str]:
    return re.findall(r"```sql\n(.*?)```", (ROOT / "docs" / page).read_text(), re.DOTALL)


def test_each_statement_of_the_docs_can_be_asked_of_the_recorded_results() -> None:
    """`store/test_database_doc.py` tests the rows on a database that has some for each."""
    with Store(ROOT / SHIPPED, create=False) as store:
        answers = {sql: store.query(sql) for sql in (*statements("database.md"), THRESHOLDS, RULES)}
    assert len(answers) > 20
    assert sum(bool(answer.rows) for answer in answers.values()) >= 15


def test_the_reports_rules_are_ranked_among_the_others(rehearsal: Path, folder: Path, autotune: Command) -> None:
    answer = autotune("query", "--db", str(rehearsal), RULES, "--csv")
    rows = list(csv.DictReader(answer.out.splitlines()))
    named = {row["proposed_by"]: row for row in rows if row["proposed_by"].startswith("M <")}
    (rule,) = named.values()
    assert (rule["property"], rule["threshold"]) == ("k", "13")
    assert rule["below"].startswith("implicit_gemm_")
    assert rule["above"].startswith("register_gemm_")
    assert 1 <= int(rule["place"]) <= int(rule["tried"])
    assert int(rule["tried"]) == len(rows) > 1


def test_a_recording_has_no_time_of_a_technique_that_is_impossible(
    rehearsal: Path, folder: Path, autotune: Command
) -> None:
    answer = autotune("ladder", "reports/000", "--stored", "--db", rehearsal, "--csv")
    rows = {(row["layer"], row["technique"]): row for row in csv.DictReader(answer.out.splitlines())}
    impossible = rows["conv1", "fused im2col and shared-memory product, tile 64"]
    assert impossible["why_not"] == "not tried"
    assert [row["technique"] for row in rows.values() if not row["best_us"]] == 2 * [impossible["technique"]]
    assert rows["conv1", "one thread per output"]["achieved_occupancy"] == "0.46"


def test_a_line_that_fails_is_told_and_costs_no_other(
    tmp_path: Path, fork_server: ForkServer, capfd: pytest.CaptureFixture[str]
) -> None:
    def autotune(words: Sequence[str]) -> tuple[int, str]:
        ended = fork_server.run(tmp_path, *words)
        return ended.code, ended.err

    words = [
        "--device",
        "null",
        "--steps",
        "retime",
        "--db",
        str(tmp_path / "none.db"),
        "--out",
        str(tmp_path / "out.db"),
    ]
    assert record(words, autotune) == 1
    told = re.findall(r"^failed: autotune retime (\S+) .*: no such file; ", capfd.readouterr().err, re.MULTILINE)
    assert told == ["lenet-k5", "lenet-k7", "fashion-k7"]
    assert not list(tmp_path.iterdir())


def test_a_step_that_there_is_not_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        record(["--out", "small.db", "--steps", "ladders"])
    assert "--steps: no ladders; there are rates, ladder, " in capsys.readouterr().err
