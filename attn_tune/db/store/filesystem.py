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


def is_network(path: Path) -> bool:
    """True when ``path`` (or the nearest parent that exists) is on a known network file system."""
    kind = filesystem_type(path)
    if kind.startswith("fuse."):
        return kind.removeprefix("fuse.").startswith(NETWORK_FUSE)
    return kind in NETWORK_TYPES


def filesystem_type(path: Path) -> str:
    """The type of the mount that holds ``path``, ``""`` when unknown."""
    import psutil

    real = Path(os.path.realpath(path))
    # A later mount on the same point hides the earlier one.
    mounts = reversed(psutil.disk_partitions(all=True))
    inside = [mount for mount in mounts if real.is_relative_to(mount.mountpoint)]
    return max(inside, key=lambda mount: len(mount.mountpoint)).fstype if inside else ""
