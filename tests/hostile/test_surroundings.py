"""Signals at any moment, missing compilers, and full disks."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import autotune
from tests.fork_server import ForkServer
from tests.long_run import every
from tests.unit.tiny import Command, Finished

from .attack import attacked, refused

TUNE = ("tune", "small.toml", "--family-dir", "families", "--trials", "3", "--device")
AUTOTUNE = f"{sys.executable} -m autotune"


def shell(folder: Path, script: str) -> Finished:
    """A script in which AUTOTUNE and TUNE are commands; it prints no traceback and leaves no temporary file."""
    temporary = folder / "temporary"
    temporary.mkdir()
    environ = {**os.environ, "AUTOTUNE": AUTOTUNE, "TUNE": f"{AUTOTUNE} {' '.join(TUNE)}", "TMPDIR": str(temporary)}
    done = subprocess.run(
        ["bash", "-c", script], cwd=folder, capture_output=True, text=True, check=False, env=environ, timeout=120
    )
    assert "Traceback" not in done.stderr, done.stderr
    assert not list(temporary.iterdir())
    return Finished(done.returncode, done.stdout, done.stderr)


def is_caught(process: subprocess.Popen[bytes]) -> bool:
    """Whether Python's own handler gets Ctrl-C: from its start until the command line is being loaded."""
    found = re.search(r"SigCgt:\s*([0-9a-f]+)", Path(f"/proc/{process.pid}/status").read_text())
    return found is not None and bool(int(found[1], 16) & 1 << signal.SIGINT - 1)


def test_a_store_may_be_asked_and_written_to_by_many_threads(filled: Path) -> None:
    def ask(_number: int) -> int:
        store.quarantine.clear()
        return len(store.trials.list())

    with autotune.Store(filled) as store, ThreadPoolExecutor(12) as threads:
        assert len(set(threads.map(ask, range(24)))) == 1


def test_ctrl_c_while_a_class_is_made() -> None:
    """Python 3.11 replaces an exception by an error of its own there, and commands import modules late."""
    script = """
import os, signal, autotune.cli

class Interrupted:
    def __set_name__(self, owner, name):
        os.kill(os.getpid(), signal.SIGINT)

def command(prog_name):
    class Made:
        field = Interrupted()

autotune.cli.cli = command
autotune.cli.main()
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (128 + signal.SIGINT, "")


@pytest.mark.parametrize("after_s", every(3, (0.0, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.6)))
def test_ctrl_c_while_it_starts(after_s: float, folder: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "autotune", "tune", "small.toml", "--device", "null"],
        cwd=folder,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    until = time.monotonic() + 20
    for caught in (True, False):
        while is_caught(process) != caught and time.monotonic() < until:
            time.sleep(0.001)
    time.sleep(after_s)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=20)
    assert process.returncode in (-signal.SIGINT, 128 + signal.SIGINT), err
    assert b"Traceback" not in err


@pytest.mark.cxx
@pytest.mark.parametrize("number", every(2, (signal.SIGTERM, signal.SIGINT)))
def test_signals_that_follow_leave_no_folder(number: signal.Signals, folder: Path, fork_server: ForkServer) -> None:
    temporary = folder / "temporary"
    temporary.mkdir()
    run = fork_server.start(folder, *TUNE, "host", env={"TMPDIR": str(temporary)})
    until = time.monotonic() + 30
    while not list(temporary.iterdir()) and time.monotonic() < until:
        time.sleep(0.01)
    for _ in range(6):
        if not run.ended:
            run.send_signal(number)
        time.sleep(0.02)
    ended = run.finish()
    assert ended.code == 128 + number, ended.err
    assert "Traceback" not in ended.err
    assert not list(temporary.iterdir())


CLOSING = """
import sqlite3, sys
from autotune.store.sqlite.database import sqlite_engine
class Connection(sqlite3.Connection):
    def close(self):
        sys.exit(130)
engine = sqlite_engine(lambda: sqlite3.connect(":memory:", factory=Connection))
engine.connect().close()
engine.dispose()
"""


def test_a_signal_while_a_database_is_closed_ends_without_a_traceback() -> None:
    done = subprocess.run([sys.executable, "-c", CLOSING], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (130, "")


@pytest.mark.parametrize("content", every(2, (b"\x7fELF garbage", b"", b"#!/no/such/interpreter\n")))
def test_a_compiler_that_is_no_program(content: bytes, folder: Path, fork_server: ForkServer) -> None:
    compiler = folder / "cxx"
    compiler.write_bytes(content)
    words = ("check", "families/tiny.cu.j2", "--configs", "1", "--device", "host")
    ended = attacked(fork_server, folder, *words, env={"CXX": str(compiler)})
    refused(ended, f"autotune: CXX={compiler}: is not a program that can be run; ")
    compiler.chmod(0o755)
    ended = attacked(fork_server, folder, *words, env={"CXX": str(compiler)})
    refused(ended, f"{compiler}: ")


def test_a_delay_without_an_end(autotune: Command, folder: Path) -> None:
    for number in ("1e300", "1e9", "inf", "nan", "-1"):
        complaint = autotune(*TUNE, f"null:delay_ms={number}").complaint
        assert complaint.startswith(f"null:delay_ms={number}: expected NAME=SHARE with NAME one of ")
        assert "delay_ms=NUMBER or compile_ms=NUMBER, 3600000 at most" in complaint


@pytest.mark.parametrize("kind", ["host:", "cuda:x", ""])
def test_a_device_whose_name_has_no_end(kind: str, autotune: Command, folder: Path) -> None:
    line = refused(autotune(*TUNE, f"{kind}{'9' * 5000}"), f"{kind}999", "999...: ")
    assert len(line) < 300


def test_a_full_disk_behind_standard_error_stops_no_run(folder: Path, fork_server: ForkServer) -> None:
    with open("/dev/full", "w") as full:
        ended = fork_server.start(folder, *TUNE, "null", "--json", err=full.fileno()).finish()
    assert ended.code == 0
    assert '"layer": "small.one"' in ended.out
    assert shell(folder, "$AUTOTUNE best --db none.db 2>/dev/full").code == 1, "and Python ends as ever"


MOUNTS = ("unshare", "--user", "--map-root-user", "--mount", "bash", "-c")


def can_mount() -> bool:
    try:
        done = subprocess.run([*MOUNTS, "mount -t tmpfs none /mnt"], capture_output=True, check=False)
    except OSError:
        return False
    return done.returncode == 0


@pytest.fixture
def mounted(folder: Path) -> Iterator[Callable[[str], ForkServer]]:
    """A server for runs that see file systems which a script has mounted in the folder, and no other process sees."""
    if not can_mount():
        pytest.skip("no file system can be mounted here")
    servers = []

    def begin(script: str) -> ForkServer:
        script = f'(cd "$0"; {script}); exec "$@"'
        servers.append(ForkServer((*MOUNTS, script, str(folder))))
        return servers[-1]

    yield begin
    for server in servers:
        server.close()


def test_a_disk_that_is_full_can_be_read(filled: Path, mounted: Callable[[str], ForkServer]) -> None:
    full, temporary = (filled.parent / name for name in ("full", "temporary"))
    full.mkdir()
    temporary.mkdir()
    server = mounted(f"""
        mount -t tmpfs -o size={(filled.stat().st_size >> 10) + 40}k none full
        cp -r autotune.db small.toml families full
        cat /dev/zero > full/fill 2> /dev/null
    """)

    def run(*words: object) -> Finished:
        return attacked(server, full, *words, env={"TMPDIR": str(temporary)})

    best, count = run("best", "--json"), run("query", "SELECT count(*) FROM trials")
    assert (best.code, best.err, count.code, count.err) == (0, "", 0, "")
    assert "small.one" in best.out
    says = "the disk is full; make room and run the command again"
    tuned = run(*TUNE, "null", "--fresh")
    assert (tuned.code, tuned.out) == (1, "")
    assert tuned.err.splitlines()[-1].startswith(f"autotune: autotune.db: {says}")
    assert run("dump", "out.jsonl").complaint == f"out.jsonl: {says}"
    exported = run("export", "small", "--out", "out", "--no-proof")
    assert exported.code == 1
    assert exported.err.splitlines()[-1].startswith("autotune: out"), exported.err
    assert exported.err.splitlines()[-1].endswith(f": {says}")
    new = run(*TUNE, "null", "--db", "new.db")
    assert new.code == 1
    assert ": the disk is full; make room" in new.err.splitlines()[-1]
    assert not list(temporary.iterdir())
    left = {path.name for path in server.seen(full).iterdir()}
    assert left == {"autotune.db", "families", "fill", "small.toml"}


def test_a_mount_that_is_read_only(filled: Path, mounted: Callable[[str], ForkServer]) -> None:
    (filled.parent / "fixed").mkdir()
    server = mounted("mount -t tmpfs none fixed && mount -o remount,ro fixed")
    for words, says in (
        (("dump", "fixed/out.jsonl"), "fixed/out.jsonl: cannot be written: Read-only file system; give another FILE"),
        (
            ("source", "small.one", "--out", "fixed/x.cu"),
            "fixed/x.cu: cannot be written: Read-only file system; give another --out",
        ),
    ):
        assert attacked(server, filled.parent, *words).complaint == says
