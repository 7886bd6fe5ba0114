"""A database on a network file system is warned about in one line, and works."""

from __future__ import annotations

from pathlib import Path

import pytest

from autotune.errors import StoreWarning
from autotune.store.sqlite.database import utc_now
from autotune.store.sqlite.filesystem import networked
from autotune.store.sqlite.open_database import open_for_writing


def mounts_of(folder: Path, *lines: str) -> Path:
    """A list of mounts beside the root's."""
    path = folder / "mounts"
    path.write_text("\n".join(("/dev/vda / ext4 rw 0 0", "proc /proc proc rw 0 0", *lines, "")))
    return path


@pytest.mark.parametrize(
    "kind", ["nfs", "nfs4", "cifs", "smb3", "fuse.sshfs", "lustre", "gpfs", "9p", "ceph", "afs", "glusterfs", "beegfs"]
)
def test_each_kind_is_known(tmp_path: Path, kind: str) -> None:
    mounts = mounts_of(tmp_path, f"server:/home {tmp_path} {kind} rw,vers=4 0 0")
    assert networked(tmp_path / "a.db", mounts) == kind


@pytest.mark.parametrize("kind", ["ext4", "xfs", "btrfs", "tmpfs", "overlay", "zfs", "fuse.ntfs", "virtiofs"])
def test_local_kinds_are_not(tmp_path: Path, kind: str) -> None:
    assert networked(tmp_path / "a.db", mounts_of(tmp_path, f"/dev/x {tmp_path} {kind} rw 0 0")) is None


def test_the_nearest_and_latest_mount_counts(tmp_path: Path) -> None:
    inner = tmp_path / "with space" / "x"
    inner.mkdir(parents=True)
    outer = f"server:/a {tmp_path} nfs4 rw 0 0"
    local = f"/dev/x {str(tmp_path / 'with space').replace(' ', chr(92) + '040')} ext4 rw 0 0"
    assert networked(inner / "a.db", mounts_of(tmp_path, outer, local)) is None
    assert networked(inner / "a.db", mounts_of(tmp_path, local, outer)) is None
    assert networked(tmp_path / "a.db", mounts_of(tmp_path, outer, local)) == "nfs4"
    assert networked(tmp_path / "a.db", mounts_of(tmp_path, outer, f"none {tmp_path} tmpfs rw 0 0")) is None
    assert networked(Path(f"{tmp_path}2") / "a.db", mounts_of(tmp_path, outer)) is None, "a name that begins alike"
    (tmp_path / "link").symlink_to(inner)
    assert networked(tmp_path / "link" / "a.db", mounts_of(tmp_path, local.replace("ext4", "cifs"))) == "cifs"
    assert networked(tmp_path / "a.db", tmp_path / "none") is None


def test_writing_says_so_in_one_line(tmp_path: Path) -> None:
    mounts = mounts_of(tmp_path, f"server:/home {tmp_path} nfs4 rw 0 0")
    path = tmp_path / "a.db"
    database = open_for_writing(path, timeout_s=1, clock=utc_now, mounts=mounts)
    with pytest.warns(StoreWarning) as noted, database.write():
        pass
    database.close()
    (note,) = noted
    assert str(note.message).startswith(f"{path}: lies on a network file system (nfs4), where SQLite's locks are not")
    assert path.exists()
    open_for_writing(path, timeout_s=1, clock=utc_now).close()
