"""The file of an export: members written piece by piece, each counted and hashed, and a manifest that lists them."""

from __future__ import annotations

import hashlib
import os
import zipfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

MANIFEST = "manifest.json"


@dataclass(slots=True)
class Archive:
    """Open for writing. `files` has what was written so far."""

    zip: zipfile.ZipFile
    files: dict[str, dict[str, Any]] = field(default_factory=dict)

    def write(self, name: str, pieces: Iterable[bytes]) -> int:
        """One member of these pieces; returns how many there were (lines, where each piece is one)."""
        digest, size, count = hashlib.sha256(), 0, 0
        with self.zip.open(name, "w", force_zip64=True) as member:
            for piece in pieces:
                member.write(piece)
                digest.update(piece)
                size += len(piece)
                count += 1
        self.files[name] = {"rows": count, "bytes": size, "sha256": digest.hexdigest()}
        return count

    def close(self, manifest: dict[str, Any]) -> None:
        self.zip.writestr(
            MANIFEST, orjson.dumps({**manifest, "files": self.files}, option=orjson.OPT_INDENT_2)
        )


@contextmanager
def writing(path: Path) -> Iterator[Archive]:
    """An archive that appears under its name when it is whole. Only this user may read it."""
    part = path.with_name(f"{path.name}.part")
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file, zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as made:
            yield Archive(made)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    part.replace(path)
