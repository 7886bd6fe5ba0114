"""Which file system a path lies on, where its kind says that SQLite's locks cannot be relied upon."""

from __future__ import annotations

import re
from pathlib import Path

MOUNTS = Path("/proc/self/mounts")
"""Linux's list: device, mount point, kind, ..., blanks written in octal; elsewhere there is none and nothing is said"""
NETWORKED = frozenset(
    {
        *("nfs", "nfs4", "cifs", "smb3", "smbfs", "smb2", "ncpfs", "afs", "9p", "ceph", "lustre", "gpfs", "glusterfs"),
        *("beegfs", "beegfs_nodev", "pvfs2", "orangefs", "panfs", "ocfs2", "gfs2", "davfs", "fuse.sshfs", "fuse.s3fs"),
        *(
            "fuse.rclone",
            "fuse.glusterfs",
            "fuse.ceph",
            "fuse.ceph-fuse",
            "fuse.gcsfuse",
            "fuse.davfs2",
            "fuse.smbnetfs",
        ),
        *("fuse.juicefs", "fuse.goofys", "fuse.s3backer"),
    }
)
"""kinds of file systems whose files other machines may have open, or whose locks are none"""


def networked(path: Path, mounts: Path = MOUNTS) -> str | None:
    """The kind of the file system that a file lies on when it is one of NETWORKED."""
    try:
        lines = mounts.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
        place = path.parent.resolve() / path.name
    except OSError:
        return None
    kind, depth = None, -1
    for line in lines:
        fields = line.split(" ")
        if len(fields) < 3:
            continue
        point = Path(re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), fields[1]))
        if place.is_relative_to(point) and len(point.parts) >= depth:  # a later mount covers an earlier one
            kind, depth = fields[2], len(point.parts)
    return kind if kind in NETWORKED else None
