"""Log files of servers and processes: appended to, kept from growing without end, quoted in errors."""

from __future__ import annotations

from pathlib import Path
from typing import BinaryIO

TAIL_LINES = 20
TAIL_BYTES = 8_192
ROTATE_BYTES = 16 * 1024 * 1024  # one older file is kept beside it


def open_log(path: Path) -> BinaryIO:
    """The file for appending. A large one is set aside first, so only a restart rotates."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if path.exists() and path.stat().st_size > ROTATE_BYTES:
        path.replace(path.with_name(path.name + ".1"))
    return path.open("ab")


def tail(path: Path, since: int = 0) -> str:
    """The last lines, of what was written after the offset `since`."""
    if not path.exists():
        return ""
    with path.open("rb") as file:
        file.seek(max(since, path.stat().st_size - TAIL_BYTES))
        lines = file.read().decode(errors="replace").splitlines()
    return "\n".join(lines[-TAIL_LINES:])
