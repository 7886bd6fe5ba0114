"""`autotune agent` as a user meets it."""

from __future__ import annotations

import importlib.util
import signal
import socket
import time
from pathlib import Path

import pytest

from tests.fork_server import ForkServer
from tests.long_run import every

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("distributed") is None,
    reason="Dask is not installed: pip install 'autotune-conv[cluster]'",
)


@pytest.mark.parametrize("name", every(2, [".", ".."]))
def test_a_name_of_dots_is_no_other_folder(fork_server: ForkServer, tmp_path: Path, name: str) -> None:
    other = tmp_path / "autotune" / "agents" / "other" / "0123456789abcdef" / "lease"
    other.parent.mkdir(parents=True)
    other.touch()
    words = ("agent", "127.0.0.1:9", "--device", "null", "--name", name, "--once")
    run = fork_server.start(tmp_path, *words, env={"XDG_CACHE_HOME": str(tmp_path)})
    until = time.monotonic() + 60  # for as long it waits for a scheduler, which there is none of
    while folders(tmp_path) == ["other"] and time.monotonic() < until:
        time.sleep(0.01)
    time.sleep(0.3)
    run.kill()
    assert other.exists()
    assert folders(tmp_path) == ["_", "other"]


def test_an_agent_that_serves_once_and_finds_nobody_has_failed(fork_server: ForkServer, tmp_path: Path) -> None:
    words = ("agent", "nowhere.invalid:1", "--device", "null", "--once")
    done = fork_server.start(tmp_path, *words, env={"XDG_CACHE_HOME": str(tmp_path)}).finish()
    assert done.code == 1, done.err
    assert done.err.splitlines()[-1].startswith("autotune: no scheduler at nowhere.invalid:1 (")
    assert "trying" not in done.err


def test_an_agent_ends_while_a_scheduler_lets_it_wait(fork_server: ForkServer, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(60)
        port = silent.getsockname()[1]
        words = ("agent", f"127.0.0.1:{port}", "--device", "null")
        run = fork_server.start(tmp_path, *words, env={"XDG_CACHE_HOME": str(tmp_path)})
        met, _ = silent.accept()
        begun = time.monotonic()
        run.send_signal(signal.SIGINT)
        done = run.finish()
        met.close()
    assert done.code == 0, done.err
    assert time.monotonic() - begun < 5, "it heeds Ctrl-C before it gives the scheduler up, which takes 10 s"


def folders(cache: Path) -> list[str]:
    """Those that agents have their journals in."""
    return sorted(each.name for each in (cache / "autotune/agents").iterdir())
