"""The folder that holds all local state: data, logs, locks and `services.json`.

`services.json` holds passwords, so only its owner may read it. It is replaced as a whole: a reader sees the
old or the new one, never half of it. A damaged file counts as missing; servers it knew are then found by
their working directory.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from orchestrator.embedded.errors import HomeBusy
from orchestrator.embedded.identity import wait_until
from orchestrator.embedded.records import ServerRecord

LOCK_SECONDS = 180.0  # longer than a start with crash recovery may take
_CHECKOUT = Path(__file__).resolve().parents[2]


class ServiceHome:
    """One home folder. Making the object touches no file."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path).resolve()  # processes know their folder by its real name
        self.logs = self.path / "log"
        self.services_file = self.path / "services.json"

    @classmethod
    def from_environment(cls) -> ServiceHome:
        """ORCHESTRATOR_HOME, or `var` in the checkout (in the working directory when installed elsewhere)."""
        if named := os.environ.get("ORCHESTRATOR_HOME"):
            return cls(named)
        return cls((_CHECKOUT if (_CHECKOUT / "pyproject.toml").is_file() else Path.cwd()) / "var")

    def folder(self, name: str) -> Path:
        """A folder of the home, made on demand and closed to other users."""
        self._make()
        folder = self.path / name
        folder.mkdir(mode=0o700, exist_ok=True)
        return folder

    def log(self, name: str) -> Path:
        return self.logs / f"{name}.log"

    def secret(self, name: str) -> str:
        """A password made once and kept. Call it under the lock."""
        path = self.folder("secrets") / name
        if not path.exists():
            write_private(path, secrets.token_hex(24))
        return path.read_text()

    def has_secret(self, name: str) -> bool:
        return (self.path / "secrets" / name).exists()

    def read_records(self) -> dict[str, ServerRecord]:
        try:
            stored = json.loads(self.services_file.read_text())
            return {name: ServerRecord.from_json(fields) for name, fields in stored["servers"].items()}
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return {}

    def write_records(self, records: Mapping[str, ServerRecord]) -> None:
        servers = {name: record.as_json() for name, record in records.items()}
        write_private(self.services_file, json.dumps({"servers": servers}, indent=2) + "\n")

    @contextmanager
    def locked(self, name: str = "lock", seconds: float = LOCK_SECONDS) -> Iterator[None]:
        """Hold a lock of this home; the kernel frees it when the holder dies.

        Raises `HomeBusy` after the bound.
        """
        self._make()
        path = self.path / name
        with path.open("a+") as file:
            if not wait_until(lambda: _try_lock(file.fileno()), seconds):
                file.seek(0)
                raise HomeBusy(path, file.read().strip())
            file.truncate(0)
            file.write(f"process {os.getpid()}")
            file.flush()
            yield

    def _make(self) -> None:
        # Others may walk through, as the database's account must when we are root. All inside is closed.
        self.path.mkdir(mode=0o711, parents=True, exist_ok=True)


def write_private(path: Path, text: str) -> None:
    """Replace a file as a whole, readable by its owner only from its first moment."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.unlink(missing_ok=True)
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
    draft.replace(path)


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
