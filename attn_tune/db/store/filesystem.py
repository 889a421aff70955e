"""Detection of network file systems, where SQLite's shared-memory WAL index does not work."""

import os
from pathlib import Path

NETWORK_TYPES = (
    "9p", "afs", "beegfs", "ceph", "cifs", "glusterfs", "gpfs", "lustre",
    "nfs", "nfs4", "ocfs2", "pvfs2", "smb2", "smb3", "smbfs",
)  # fmt: skip
NETWORK_FUSE = (
    "sshfs",
    "gcsfuse",
    "s3fs",
    "mount-s3",
    "juicefs",
    "rclone",
    "glusterfs",
    "ceph",
    "moosefs",
)
MOUNTS = Path("/proc/self/mountinfo")


def is_network(path: Path) -> bool:
    """True when ``path`` (or the nearest parent that exists) is on a known network file system.

    Unknown, and so False, where the kernel has no ``/proc/self/mountinfo``.
    """
    kind = filesystem_type(path)
    if kind.startswith("fuse."):
        return kind.removeprefix("fuse.").startswith(NETWORK_FUSE)
    return kind in NETWORK_TYPES


def filesystem_type(path: Path) -> str:
    """The type of the mount that holds ``path``, ``""`` when unknown."""
    try:
        text = MOUNTS.read_text()
    except OSError:
        return ""
    real = os.path.realpath(path)
    best, kind = "", ""
    for line in text.splitlines():
        left, _, right = line.partition(" - ")
        mount = left.split()[4].replace("\\040", " ")
        inside = real == mount or real.startswith(mount.rstrip("/") + "/")
        # A later mount on the same point hides the earlier one.
        if inside and len(mount) >= len(best):
            best, kind = mount, right.split()[0]
    return kind
