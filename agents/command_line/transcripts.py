"""Stores the transcripts of agents for people: one file for each run, limited in size and time by the settings.

    transcripts/<tenant id>/<run id>.log    below ORCHESTRATOR_HOME of the machine that ran it

Lines are stored unchanged; those of standard error begin with `! `. The run's credentials are replaced by `[secret]`. A
full file says how much is missing. Only this process's user can read it.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO
from uuid import UUID

from django.conf import settings

SHORTEST_SECRET = 6  # as in excerpts: a shorter text may occur by chance
LONGEST_LINE = 65_536  # buffered, so that a secret is found even if it arrives in two pieces
MASK = b"[secret]"


@dataclass(slots=True)
class Transcript:
    """A transcript that is written while the agent runs. It can be read at the same time."""

    file: BinaryIO
    remaining_bytes: int
    secrets: tuple[bytes, ...]
    missing: int = 0
    _open_line: dict[bytes, bytearray] = field(default_factory=dict)

    def output(self, chunk: bytes) -> None:
        self._append(b"", chunk)

    def error(self, chunk: bytes) -> None:
        self._append(b"! ", chunk)

    def close(self) -> None:
        for mark, line in self._open_line.items():
            if line and self.remaining_bytes:
                self._write(mark + self._clean(bytes(line)) + b"\n")
        if self.missing:
            with suppress(OSError):
                self.file.write(b"[%d more bytes were printed and are not kept]\n" % self.missing)
        self.file.close()

    def _append(self, mark: bytes, chunk: bytes) -> None:
        if not self.remaining_bytes:
            self.missing += len(chunk)
            return
        line = self._open_line.setdefault(mark, bytearray())
        line += chunk
        if b"\n" not in chunk and len(line) < LONGEST_LINE:
            return
        lines, separator, rest = bytes(line).rpartition(b"\n")
        if not separator:
            lines, rest = rest, b""
        line[:] = rest
        marked = b"".join(mark + text + b"\n" for text in self._clean(lines).split(b"\n"))
        self._write(marked)

    def _clean(self, text: bytes) -> bytes:
        for secret in self.secrets:
            text = text.replace(secret, MASK)
        return text

    def _write(self, text: bytes) -> None:
        part = text[: self.remaining_bytes]
        try:
            self.file.write(part)
        except OSError:
            part, self.remaining_bytes = b"", 0  # a full disk must not end the agent
        self.remaining_bytes -= len(part)
        self.missing += len(text) - len(part)


def begin(tenant_id: UUID, run_id: UUID, *, secrets: Iterable[str]) -> Transcript:
    """Create the file, or empty an existing one of the same run."""
    path = path_of(tenant_id, run_id)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    hidden = tuple(secret.encode() for secret in secrets if len(secret) >= SHORTEST_SECRET)
    file = os.fdopen(descriptor, "wb", buffering=0)
    return Transcript(file, settings.ORCHESTRATOR_TRANSCRIPT_MAX_BYTES, hidden)


def path_of(tenant_id: UUID, run_id: UUID) -> Path:
    return _home() / str(tenant_id) / f"{run_id}.log"


def read(tenant_id: UUID, run_id: UUID) -> Iterator[bytes] | None:
    """Return the current transcript, piece by piece, or None when this machine has none."""
    try:
        file = path_of(tenant_id, run_id).open("rb")
    except OSError:
        return None
    return _pieces(file)


def _pieces(file: BinaryIO) -> Iterator[bytes]:
    with file:
        while piece := file.read(65_536):
            yield piece


def delete_before(tenant_id: UUID, before: float, *, most: int) -> int:
    """Delete at most `most` transcripts of a tenant that were last written to before this time. Return how many."""
    deleted = 0
    for path in list_before(tenant_id, before)[:most]:
        with suppress(FileNotFoundError):  # another process of this machine has deleted it
            path.unlink()
            deleted += 1
    return deleted


def list_before(tenant_id: UUID, before: float) -> list[Path]:
    """Return the transcripts of a tenant on this machine that were last written to before this time."""
    return [path for path in (_home() / str(tenant_id)).glob("*.log") if _modified_at(path) < before]


def list_tenants() -> list[UUID]:
    """Return the tenants that have transcripts on this machine."""
    return [UUID(path.name) for path in _home().glob("*-*-*-*-*") if path.is_dir()]


def delete_all(tenant_id: UUID) -> int:
    """Delete every transcript of a tenant on this machine. Return how many there were."""
    folder = _home() / str(tenant_id)
    count = len(list(folder.glob("*.log")))
    shutil.rmtree(folder, ignore_errors=True)
    return count


def _modified_at(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return float("inf")


def _home() -> Path:
    return Path(settings.ORCHESTRATOR_HOME) / "transcripts"
