"""A large database, at which two processes work: what comes of it is what comes of one, and nothing stays behind."""

from __future__ import annotations

import io
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest

from autotune.store import dump, is_large
from tests.benchmarks.scale import enlarge
from tests.fork_server import ForkedRun, ForkServer
from tests.long_run import long_run
from tests.unit.tiny import Finished

from .attack import attacked, refused

pytestmark = pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one core, on which there is one process")

TRIALS = 24_000
ON_ONE_CORE = """
import os, runpy, sys
os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])
sys.argv[0] = "autotune"
runpy.run_module("autotune", run_name="__main__")
"""


@pytest.fixture(scope="module")
def large_bytes(database: bytes, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The bytes of a database that is large."""
    path = tmp_path_factory.mktemp("large") / "large.db"
    path.write_bytes(database)
    enlarge(path, TRIALS)
    with closing(sqlite3.connect(path)) as raw, raw:
        raw.execute("UPDATE trials SET message = printf('%03000d', id) WHERE id > 100")
    assert is_large(path)
    return path.read_bytes()


@pytest.fixture
def large(folder: Path, large_bytes: bytes) -> Path:
    """A folder with it, as autotune.db."""
    (folder / "autotune.db").write_bytes(large_bytes)
    return folder


@pytest.fixture(scope="module")
def dumped_bytes(large_bytes: bytes, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The bytes of its dump."""
    folder = tmp_path_factory.mktemp("dumped")
    (folder / "autotune.db").write_bytes(large_bytes)
    dump(folder / "autotune.db", (lines := io.StringIO()).write)
    return lines.getvalue().encode()


@pytest.fixture
def dumped(large: Path, dumped_bytes: bytes) -> Path:
    """The folder with its dump, too, as all.jsonl."""
    (large / "all.jsonl").write_bytes(dumped_bytes)
    return large


def alone(folder: Path, *words: str) -> Finished:
    """`autotune WORDS...` where there is one core."""
    command = [sys.executable, "-c", ON_ONE_CORE, *words]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    return Finished(done.returncode, done.stdout, done.stderr)


def helpers(run: ForkedRun) -> Iterator[int]:
    """The processes that help a run."""
    for number in Path(f"/proc/{run.number}/task/{run.number}/children").read_text().split():
        try:
            words = Path(f"/proc/{number}/cmdline").read_bytes().split(b"\0")
        except OSError:  # it has ended
            continue
        if any(b"autotune.second_process" in word for word in words):
            yield int(number)


def helper(run: ForkedRun) -> int:
    """The process that helps a run, once there is one."""
    until = time.monotonic() + 60
    while time.monotonic() < until and not run.ended:
        for number in helpers(run):
            return number
        time.sleep(0.002)
    pytest.fail(f"no process helped: {run.finish()}")


def gone(number: int) -> bool:
    """Whether a process has ended, soon."""
    until = time.monotonic() + 30
    while time.monotonic() < until:
        try:
            if Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except FileNotFoundError:
            return True
        time.sleep(0.01)
    return False


def wrong_in_both_halves(path: Path) -> None:
    """Plant rows that cannot be understood: of a piece that this process reads, and of one that the other does."""
    with closing(sqlite3.connect(path)) as raw, raw:
        raw.execute("UPDATE trials SET config = '[1]' WHERE number IN (1002050, 1002150, 1019999)")
        raw.execute(
            "UPDATE measurements SET samples_us = '[null]' WHERE trial_id = (SELECT max(trial_id) FROM measurements)"
        )


@pytest.mark.parametrize(
    ("words", "planted"),
    [
        ("dump", True),
        ("trials --all --csv", True),
        *long_run(
            ("dump", False),
            ("trials --all --csv", False),
            ("trials --all --csv --limit 15000", False),
            ("trials --all --csv --limit 15000", True),
            ("trials --all --json", False),
            ("trials --all --json", True),
        ),
    ],
)
def test_two_processes_print_what_one_does(large: Path, fork_server: ForkServer, words: str, planted: bool) -> None:
    if planted:
        wrong_in_both_halves(large / "autotune.db")
    run = fork_server.start(large, *words.split())
    number = helper(run)
    both, one = run.finish(), alone(large, *words.split())
    assert gone(number)
    assert (both.code, one.code) == (0, 0), both.err
    assert both.out == one.out
    assert len(both.out.splitlines()) > TRIALS / 2
    assert both.err == one.err
    assert ("without trials row " in both.err) == planted


def test_a_loaded_dump_is_the_same_and_a_merge_brings_all(dumped: Path, fork_server: ForkServer) -> None:
    run = fork_server.start(dumped, "load", "all.jsonl", "--db", "loaded.db")
    helper(run)
    loaded = run.finish()
    assert loaded.code == 0, loaded.err
    attacked(fork_server, dumped, "dump", "again.jsonl", "--db", "loaded.db", within_s=60)
    assert (dumped / "again.jsonl").read_bytes() == (dumped / "all.jsonl").read_bytes()
    assert schema(dumped / "loaded.db") == schema(dumped / "autotune.db")
    run = fork_server.start(dumped, "merge", "loaded.db", "--db", "merged.db")
    helper(run)
    merged = run.finish()
    assert merged.code == 0, merged.err
    assert trials(dumped / "merged.db") == trials(dumped / "autotune.db")
    assert not list(dumped.glob(".autotune-*"))
    assert alone(dumped, "load", "all.jsonl", "--db", "alone.db").err == loaded.err.replace("loaded.db", "alone.db")
    assert schema(dumped / "alone.db") == schema(dumped / "loaded.db")


def schema(path: Path) -> set[tuple[str, ...]]:
    """What a database has: tables, indexes and views."""
    with closing(sqlite3.connect(path)) as raw:
        return set(raw.execute("SELECT type, name, sql FROM sqlite_master WHERE name NOT LIKE 'sqlite_stat%'"))


def trials(path: Path) -> int:
    """How many trials it has."""
    with closing(sqlite3.connect(path)) as raw:
        return int(raw.execute("SELECT count(*) FROM trials").fetchone()[0])


def test_a_merge_into_a_new_file_brings_what_one_process_does(large: Path, fork_server: ForkServer) -> None:
    """One process writes to the file itself, two to one beside."""
    run = fork_server.start(large, "merge", "autotune.db", "--db", "both.db")
    assert begins_beside(run, large)
    both, one = run.finish(), alone(large, "merge", "autotune.db", "--db", "one.db")
    assert (both.code, one.code) == (0, 0), both.err
    assert both.err == one.err.replace("one.db", "both.db")
    assert schema(large / "both.db") == schema(large / "one.db")
    for name in ("both", "one"):
        attacked(fork_server, large, "dump", f"{name}.jsonl", "--db", f"{name}.db", within_s=60)
        with closing(sqlite3.connect(large / f"{name}.db")) as raw:
            assert raw.execute("PRAGMA journal_mode").fetchall() == [("wal",)]
            assert raw.execute("PRAGMA foreign_key_check").fetchall() == []
    merged, written = ((large / f"{name}.jsonl").read_text().splitlines() for name in ("both", "one"))
    assert len(merged) == len(written) > TRIALS
    assert all('"table":"schema_versions"' in line for line in set(merged) ^ set(written)), "the date alone differs"
    assert not list(large.glob(".autotune-*"))


def begins_beside(run: ForkedRun, folder: Path) -> bool:
    """Whether a run makes a file beside another before it ends."""
    while not run.ended:
        if any(folder.glob(".autotune-*")):
            return True
        time.sleep(0.002)
    return False


def test_a_merge_into_a_new_file_that_is_killed_leaves_nothing(large: Path, fork_server: ForkServer) -> None:
    run = fork_server.start(large, "merge", "autotune.db", "--db", "new.db")
    number = helper(run)
    assert begins_beside(run, large)
    run.send_signal(signal.SIGKILL)
    assert run.finish().code == -signal.SIGKILL
    assert gone(number)
    assert not list(large.glob(".autotune-*"))
    assert not list(large.glob("new.db*"))


def test_a_file_that_is_made_while_its_name_is_waited_for_keeps_its_rows(
    large: Path, database: bytes, fork_server: ForkServer
) -> None:
    (large / "made.db").write_bytes(database)
    had = trials(large / "made.db")
    run = fork_server.start(large, "merge", "autotune.db", "--db", "new.db")
    assert begins_beside(run, large)
    (large / "made.db").rename(large / "new.db")
    done = run.finish()
    assert done.code == 0, done.err
    assert f"{TRIALS} trials and 0 studies merged" in done.err
    assert trials(large / "new.db") == had + TRIALS
    assert not list(large.glob(".autotune-*"))


@pytest.mark.parametrize(
    ("column", "value", "words"),
    [
        ("number", "'seven'", "number = "),
        ("outcome", "none", "outcome = 'none': expected one of running, "),
        ("id", 5, "UNIQUE constraint failed: trials.id"),
    ],
    ids=["kind", "rule", "twice"],
)
def test_a_wrong_row_far_behind_is_named_and_nothing_is_loaded(
    dumped: Path, fork_server: ForkServer, column: str, value: object, words: str
) -> None:
    lines = (dumped / "all.jsonl").read_text().splitlines(keepends=True)
    at = max(number for number, line in enumerate(lines) if line.startswith('{"table":"trials"')) - 3
    record = json.loads(lines[at])
    record["row"][column] = value
    lines[at] = json.dumps(record) + "\n"
    (dumped / "all.jsonl").write_text("".join(lines))
    done = attacked(fork_server, dumped, "load", "all.jsonl", "--db", "new.db", within_s=60)
    line = refused(done, words, "nothing was loaded")
    assert line.startswith(
        "autotune: all.jsonl: trials row " if "expected one of" in words else f"autotune: all.jsonl:{at + 1}: "
    )
    assert not list(dumped.glob("new.db*"))
    assert not list(dumped.glob(".autotune-*"))


def test_a_merge_refuses_a_wrong_row_that_the_other_process_finds(large: Path, fork_server: ForkServer) -> None:
    with closing(sqlite3.connect(large / "autotune.db")) as raw, raw:
        raw.execute("UPDATE trials SET config = '[1]' WHERE id = (SELECT max(id) FROM trials)")
    done = attacked(fork_server, large, "merge", "autotune.db", "--db", "new.db", within_s=60)
    refused(done, "autotune.db: trials row ", "nothing was merged")
    assert not (large / "new.db").exists()


COMMANDS = ("dump new", "load all.jsonl --db new", "merge autotune.db --db new", "trials --csv --all")


@pytest.mark.parametrize("words", COMMANDS)
def test_what_a_helper_that_did_not_start_was_for_is_done_alone(
    dumped: Path, fork_server: ForkServer, words: str
) -> None:
    run = fork_server.start(dumped, *words.split())
    os.kill(helper(run), signal.SIGKILL)
    done = run.finish()
    assert done.code == 0, done.err
    assert (dumped / "new").exists() or done.out.count("small.one") > TRIALS


@pytest.mark.parametrize("words", COMMANDS)
def test_a_helper_that_is_killed_ends_the_command_in_one_line(
    dumped: Path, fork_server: ForkServer, words: str
) -> None:
    (dumped / "temporary").mkdir(exist_ok=True)
    run = fork_server.start(dumped, *words.split(), env={"TMPDIR": str(dumped / "temporary")})
    number = helper(run)
    with suppress(FileNotFoundError, ProcessLookupError):  # it may end before
        while cpu_s(number) < 1.0:  # it takes 0.5 s to start
            time.sleep(0.01)
        os.kill(number, signal.SIGKILL)
    done = run.finish()
    if done.code != 0:  # it was not about to end
        refused(done, "a process that helped here was killed by signal 9; run this again")
        assert not (dumped / "new").exists()
    assert not list(dumped.glob(".autotune-*"))
    assert not list((dumped / "temporary").iterdir())


def cpu_s(number: int) -> float:
    """CPU time that a process has taken."""
    return sum(map(int, Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[11:13])) / os.sysconf(
        "SC_CLK_TCK"
    )


@pytest.mark.parametrize(
    ("words", "by", "after_s", "goes"),
    [
        ("dump new", signal.SIGINT, 0.3, "*autotune-*"),
        ("dump new", signal.SIGKILL, 1.5, "autotune-*"),  # the copy, but not the file that was being written
        ("load all.jsonl --db new", signal.SIGINT, 1.5, "*autotune-*"),
        ("load all.jsonl --db new", signal.SIGKILL, 0.3, "*autotune-*"),
        ("load all.jsonl --db new", signal.SIGKILL, 1.5, "*autotune-*"),
        *long_run(
            ("dump new", signal.SIGTERM, 0.3, "*autotune-*"),
            ("dump new", signal.SIGTERM, 1.5, "*autotune-*"),
            ("load all.jsonl --db new", signal.SIGTERM, 0.3, "*autotune-*"),
            ("load all.jsonl --db new", signal.SIGKILL, 1.0, "*autotune-*"),
            ("load all.jsonl --db new", signal.SIGKILL, 2.0, "*autotune-*"),
        ),
    ],
)
def test_a_command_that_is_ended_takes_its_helper_along(
    dumped: Path, fork_server: ForkServer, words: str, by: signal.Signals, after_s: float, goes: str
) -> None:
    run = fork_server.start(dumped, *words.split(), env={"TMPDIR": str(dumped)})
    number = helper(run)
    time.sleep(after_s)
    run.send_signal(by)
    done = run.finish()
    assert done.code in (-by, 128 + by, 0 if after_s >= 1 else -by), done  # it may have come to its end
    assert "Traceback" not in done.err
    assert gone(number)
    assert (dumped / "new").exists() == (done.code == 0)
    assert not list(dumped.glob(goes)), "what the first process began is gone, even where it was killed"


@pytest.mark.parametrize("words", ["load all.jsonl", "merge autotune.db"])
def test_logs_of_a_file_that_is_gone_are_not_taken_for_the_new_ones(
    dumped: Path, database: bytes, fork_server: ForkServer, words: str
) -> None:
    """Whose writer was killed: SQLite would apply them to whatever has the name."""
    lost = dumped / "lost.db"
    script = (
        "import os, sqlite3, sys; raw = sqlite3.connect(sys.argv[1], isolation_level=None); "
        "raw.execute('PRAGMA journal_mode = wal'); raw.execute('PRAGMA wal_autocheckpoint = 0'); "
        "raw.execute('UPDATE trials SET message = hex(zeroblob(900))'); os.kill(os.getpid(), 9)"
    )
    lost.write_bytes(database)
    subprocess.run([sys.executable, "-c", script, str(lost)], check=False)
    lost.unlink()
    assert lost.with_name("lost.db-wal").stat().st_size > 0
    done = attacked(fork_server, dumped, *words.split(), "--db", "lost.db", within_s=60)
    assert done.code == 0, done.err
    with closing(sqlite3.connect(lost)) as raw:
        assert raw.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    assert trials(lost) == trials(dumped / "autotune.db")


def test_modules_in_the_folder_are_not_those_of_the_helper(large: Path) -> None:
    """Nor is a program that is not installed but on the path of the first process alone."""
    for name in ("json", "orjson", "queue", "autotune", "sqlite3"):
        (large / f"{name}.py").write_text("open('ran', 'w').close(); raise SystemExit(1)")
    script = (
        "import sys; sys.path[:] = [each for each in sys.path if each]; sys.path.insert(0, sys.argv[1]); "
        "import pathlib; sys.path.append(pathlib.Path('no text')); "
        "from autotune.store import dump; print(dump('autotune.db', lambda text: None))"
    )
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [sys.executable, "-P", "-c", script, str(Path(__file__).parents[2])]
    done = subprocess.run(command, cwd=large, capture_output=True, text=True, check=False, env=environ)
    assert (done.returncode, done.stderr) == (0, "")
    assert int(done.stdout) > TRIALS
    assert not (large / "ran").exists()


def test_the_first_wrong_line_is_named_whoever_finds_it(dumped: Path, fork_server: ForkServer) -> None:
    lines = (dumped / "all.jsonl").read_text().splitlines(keepends=True)
    at = max(number for number, line in enumerate(lines) if line.startswith('{"table":"trials"')) - 900
    record = json.loads(lines[at])
    record["row"]["id"] = 5
    lines[at], lines[at + 250] = json.dumps(record) + "\n", "no line\n"
    (dumped / "all.jsonl").write_text("".join(lines))
    done = attacked(fork_server, dumped, "load", "all.jsonl", "--db", "new.db", within_s=60)
    refused(done, f"all.jsonl:{at + 1}: trials: UNIQUE constraint failed", "nothing was loaded")


def test_a_limit_is_where_reading_ends(large: Path, fork_server: ForkServer) -> None:
    """A row behind it that cannot be understood is not met."""
    with closing(sqlite3.connect(large / "autotune.db")) as raw, raw:
        raw.execute("UPDATE trials SET config = '[1]' WHERE id = (SELECT max(id) FROM trials)")
    done = attacked(fork_server, large, "trials", "--all", "--csv", "--device", "null", "--limit", "3")
    assert (done.code, len(done.out.splitlines())) == (0, 4)
    assert "without" not in done.err


def test_where_no_links_can_be_made_rows_are_copied(dumped: Path, fork_server: ForkServer) -> None:
    """As into a file that is there and empty."""
    (dumped / "new.db").touch()
    done = attacked(fork_server, dumped, "load", "all.jsonl", "--db", "new.db", within_s=60)
    assert done.code == 0, done.err
    attacked(fork_server, dumped, "dump", "again.jsonl", "--db", "new.db", within_s=60)
    assert (dumped / "again.jsonl").read_bytes() == (dumped / "all.jsonl").read_bytes()
    assert schema(dumped / "new.db") == schema(dumped / "autotune.db")
    shutil.copy(dumped / "new.db", dumped / "had.db")
    refused(attacked(fork_server, dumped, "load", "all.jsonl", "--db", "new.db", within_s=60), "has results already")
    assert (dumped / "new.db").read_bytes() == (dumped / "had.db").read_bytes()
