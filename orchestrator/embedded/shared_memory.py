"""Removes the System V shared memory segment that a killed PostgreSQL leaves behind.

PostgreSQL keeps 56 bytes there to notice a second server on the same data. Its next start removes them, but
after a final stop nobody would.
"""

from __future__ import annotations

import ctypes

_REMOVE = 0  # IPC_RMID, the same on Linux and macOS
_KEY_LINE = 6  # of postmaster.pid: "key identifier"


def remove_segment_of(lock_file: str) -> None:
    """Remove the segment named in the text of a `postmaster.pid`.

    Does nothing if it is gone. No server may use it.
    """
    lines = lock_file.splitlines()
    if len(lines) <= _KEY_LINE or len(lines[_KEY_LINE].split()) != 2:
        return
    key, identifier = map(int, lines[_KEY_LINE].split())
    library = ctypes.CDLL(None, use_errno=True)
    # After a restart of the machine the identifier may be somebody else's; then the key leads elsewhere.
    if library.shmget(ctypes.c_int(key), ctypes.c_size_t(0), 0) == identifier:
        library.shmctl(identifier, _REMOVE, None)
