"""The folder with all local state: data, logs, locks and `services.json`.

`services.json` contains passwords, so only its owner may read it. It is replaced atomically. A damaged file counts
as missing; its servers are then found by their working directory.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO, TextIO

from orchestrator.embedded.errors import EmbeddedError, HomeBusy
from orchestrator.embedded.identity import ProcessIdentity, wait_until

LOCK_SECONDS = 180.0  # longer than a start with crash recovery may take
_CHECKOUT = Path(__file__).resolve().parents[2]


class ServiceHome:
    """One home folder. Creating the object changes no files."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path).resolve()  # because processes report the real path of their folder
        self.logs = self.path / "log"
        self.services_file = self.path / "services.json"
        self.ports_file = self.path / "ports.json"

    @classmethod
    def from_environment(cls) -> ServiceHome:
        """Return ORCHESTRATOR_HOME, or `var` in the checkout (in the working directory if there is no checkout)."""
        if path := os.environ.get("ORCHESTRATOR_HOME"):
            return cls(path)
        return cls((_CHECKOUT if (_CHECKOUT / "pyproject.toml").is_file() else Path.cwd()) / "var")

    def folder(self, name: str) -> Path:
        """Return a folder of the home. It is created if needed, and closed to other users."""
        self._make()
        folder = self.path / name
        folder.mkdir(mode=0o700, exist_ok=True)
        return folder

    def log(self, name: str) -> Path:
        return self.logs / f"{name}.log"

    def secret(self, name: str) -> str:
        """Return a password, which is created at the first call. Call it under the lock."""
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

    def read_ports(self) -> dict[str, int]:
        """Return the ports of `make up`, by environment variable; empty if it does not run here."""
        try:
            stored = json.loads(self.ports_file.read_text())
            if ProcessIdentity(stored["pid"], stored["started"]).is_alive():
                return {name: int(port) for name, port in stored["ports"].items()}
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            pass
        return {}

    def write_ports(self, **ports: int) -> None:
        """Store the ports that this process serves, for processes that are started by hand. They are valid while it lives."""
        this = ProcessIdentity.of(os.getpid())
        if this:
            write_private(self.ports_file, json.dumps({"ports": ports, **asdict(this)}) + "\n")

    @contextmanager
    def lock(self, name: str = "lock", seconds: float = LOCK_SECONDS) -> Iterator[None]:
        """Hold a lock of this home; the kernel releases it if the holder dies. Raises `HomeBusy` after `seconds`, or `EmbeddedError`."""
        path = self.path / name
        with self._open_lock(path) as file:
            if not wait_until(lambda: _try_lock(file.fileno()), seconds):
                file.seek(0)
                raise HomeBusy(path, file.read().strip())
            file.truncate(0)
            file.write(f"process {os.getpid()}")
            file.flush()
            yield

    def _open_lock(self, path: Path) -> TextIO:
        try:
            self._make()
            return path.open("a+")
        except OSError as error:
            raise EmbeddedError(
                f"The folder {self.path} cannot be used: {error.strerror}. Choose another one with ORCHESTRATOR_HOME.",
                code="home_unusable",
            ) from error

    def _make(self) -> None:
        # Others may walk through it, because PostgreSQL's account must if we are root. Its contents are closed.
        self.path.mkdir(mode=0o711, parents=True, exist_ok=True)


def write_private(path: Path, text: str) -> None:
    """Replace a file atomically. Only its owner can ever read it."""
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


SERVICES = ("postgres", "redis", "mongo")


@dataclass(frozen=True)
class Endpoints:
    """URLs of the servers, with passwords. Empty for a server that was never started."""

    database_url: str = ""
    redis_url: str = ""
    mongodb_uri: str = ""

    def as_environment(self) -> dict[str, str]:
        """Return the environment variables by which other processes find the same servers."""
        variables = {
            "DATABASE_URL": self.database_url,
            "REDIS_URL": self.redis_url,
            "MONGODB_URI": self.mongodb_uri,
        }
        return {name: url for name, url in variables.items() if url}


@dataclass(frozen=True)
class ServerRecord:
    """The last start of one server. `process` is None after it was stopped; its port stays reserved."""

    port: int
    url: str
    durable: bool
    process: ProcessIdentity | None = None

    def is_alive(self) -> bool:
        return self.process is not None and self.process.is_alive()

    def as_json(self) -> dict[str, Any]:
        return {
            "port": self.port,
            "url": self.url,
            "durable": self.durable,
            "pid": self.process and self.process.pid,
            "started": self.process and self.process.started,
        }

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> ServerRecord:
        process = ProcessIdentity(int(fields["pid"]), str(fields["started"])) if fields["pid"] else None
        return cls(int(fields["port"]), str(fields["url"]), bool(fields["durable"]), process)


def endpoints_of(records: Mapping[str, ServerRecord]) -> Endpoints:
    urls = {name: record.url for name, record in records.items() if record.process is not None}
    return Endpoints(
        database_url=urls.get("postgres", ""),
        redis_url=urls.get("redis", ""),
        mongodb_uri=urls.get("mongo", ""),
    )


TAIL_LINES = 20
TAIL_BYTES = 8_192
ROTATE_BYTES = 16 * 1024 * 1024  # one older file is kept


def open_log(path: Path) -> BinaryIO:
    """Open the file for appending. A large file is rotated first, so rotation happens only at a restart."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if path.exists() and path.stat().st_size > ROTATE_BYTES:
        path.replace(path.with_name(path.name + ".1"))
    return path.open("ab")


def tail(path: Path, since: int = 0) -> str:
    """Return the last lines that were written after the offset `since`."""
    if not path.exists():
        return ""
    with path.open("rb") as file:
        file.seek(max(since, path.stat().st_size - TAIL_BYTES))
        lines = file.read().decode(errors="replace").splitlines()
    return "\n".join(lines[-TAIL_LINES:])
