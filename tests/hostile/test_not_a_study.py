"""Files that are not studies."""

from pathlib import Path

from tests.fork_server import ForkServer

from .attack import attacked, refused


def test_bytes_that_are_no_text_are_one_line(folder: Path, fork_server: ForkServer) -> None:
    """Random bytes instead of a study."""
    (folder / "noise.toml").write_bytes(bytes(range(256)) * 64)
    refused(attacked(fork_server, folder, "tune", "noise.toml", "--device", "null"), "noise.toml")
    assert not (folder / "autotune.db").exists()
