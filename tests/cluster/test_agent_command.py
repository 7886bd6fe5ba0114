"""`autotune agent` as a user meets it."""

from __future__ import annotations

import importlib.util
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
    done = fork_server.run(tmp_path, *words, env={"XDG_CACHE_HOME": str(tmp_path)})
    assert done.code == 0, done.err
    assert other.exists()
    assert sorted(each.name for each in (tmp_path / "autotune/agents").iterdir()) == ["_", "other"]
