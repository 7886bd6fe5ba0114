"""`autotune worker` as a user runs it."""

from __future__ import annotations

import signal
import socket
import time
from pathlib import Path

import pytest

pytest.importorskip("distributed")

from tests.fork_server import ForkServer


@pytest.mark.parametrize("command", ["worker", "agent"])
def test_a_worker_that_serves_once_and_finds_nobody_has_failed(
    fork_server: ForkServer, tmp_path: Path, command: str
) -> None:
    done = fork_server.start(tmp_path, command, "nowhere.invalid:1", "--device", "null", "--once").finish()
    assert done.code == 1, done.err
    lines = done.err.splitlines()
    assert lines[-1].startswith("autotune: no scheduler at nowhere.invalid:1 (")
    assert "no answer" not in lines[-1], "no host has this name, so it does not wait 10 s for one"
    assert "trying" not in done.err
    renamed = "note: `autotune agent` is now `autotune worker`; the old name will be removed"
    assert (renamed in lines) == (command == "agent")


def test_a_worker_ends_while_a_scheduler_lets_it_wait(fork_server: ForkServer, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(60)
        port = silent.getsockname()[1]
        run = fork_server.start(tmp_path, "worker", f"127.0.0.1:{port}", "--device", "null")
        met, _ = silent.accept()
        begun = time.monotonic()
        run.send_signal(signal.SIGINT)
        done = run.finish()
        met.close()
    assert done.code == 0, done.err
    assert time.monotonic() - begun < 5, "it heeds Ctrl-C before it gives the scheduler up, which takes 10 s"
