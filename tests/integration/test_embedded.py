"""The embedded servers, as real processes in their own home folders.

Needs neither Django nor any other server.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import psycopg
import pytest
import redis
from pymongo import MongoClient
from redis.backoff import NoBackoff
from redis.retry import Retry

from orchestrator import embedded
from orchestrator.embedded.errors import EmbeddedError, ServerFailed
from tests import quick_python

pytestmark = pytest.mark.long

COMMAND = (sys.executable, "-m", "orchestrator.embedded")


@contextmanager
def empty_home() -> Iterator[embedded.ServiceHome]:
    # Not pytest's tmp_path, because the account of PostgreSQL cannot read its parents when we are root.
    folder = Path(tempfile.mkdtemp(prefix="embedded-"))
    home = embedded.ServiceHome(folder / "home")
    yield home
    embedded.stop(home)
    shutil.rmtree(folder)


@pytest.fixture
def home() -> Iterator[embedded.ServiceHome]:
    """An empty home whose servers are stopped afterwards."""
    with empty_home() as home:
        yield home


@pytest.fixture(scope="module")
def initialized_home() -> Iterator[embedded.ServiceHome]:
    """A home with a PostgreSQL cluster, to be copied, because creating a cluster takes much longer."""
    with empty_home() as home:
        start(home, "postgres")
        embedded.stop(home)
        yield home


@pytest.fixture
def used_home(initialized_home: embedded.ServiceHome, home: embedded.ServiceHome) -> embedded.ServiceHome:
    """A home with a PostgreSQL cluster in which nothing runs."""
    copy_home(initialized_home, home)
    return home


@pytest.fixture(scope="module")
def running_home(initialized_home: embedded.ServiceHome) -> Iterator[embedded.ServiceHome]:
    """A home whose three servers run, for tests that change nothing."""
    with empty_home() as home:
        copy_home(initialized_home, home)
        start(home)
        yield home


def copy_home(home: embedded.ServiceHome, to: embedded.ServiceHome) -> None:
    subprocess.run(("cp", "-a", home.path, to.path), check=True)  # keeps the owners of files


def start(home: embedded.ServiceHome, *services: str, durable: bool = False) -> embedded.Endpoints:
    return embedded.start(home, services=services or embedded.SERVICES, durable=durable)


def processes_in(home: embedded.ServiceHome) -> list[psutil.Process]:
    """Every process in the home's folder or with it on the command line, including zombies."""
    processes = []
    for process in psutil.process_iter(["pid", "cwd", "cmdline"]):
        text = f"{process.info['cwd']} {process.info['cmdline']}"
        if process.pid != os.getpid() and str(home.path) in text:
            processes.append(process)
    return processes


def pids(home: embedded.ServiceHome) -> dict[str, int | None]:
    return {server.name: server.pid for server in embedded.status(home)}


def kill(home: embedded.ServiceHome, service: str) -> None:
    pid = pids(home)[service]
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    psutil.wait_procs([psutil.Process(pid)] if psutil.pid_exists(pid) else [], timeout=10)


def shared_memory_of_database(home: embedded.ServiceHome) -> str:
    """The identifier of the System V segment that the running PostgreSQL uses."""
    return (home.path / "postgres/data/postmaster.pid").read_text().splitlines()[6].split()[1]


def shared_memory_segments() -> set[str]:
    lines = Path("/proc/sysvipc/shm").read_text().splitlines()
    return {line.split()[1] for line in lines[1:]}


def query(url: str, statement: str) -> Any:
    with psycopg.connect(url, autocommit=True) as connection:
        cursor = connection.execute(statement)
        return cursor.fetchall() if cursor.description else None


def documents(uri: str) -> MongoClient[dict[str, Any]]:
    return MongoClient(uri, serverSelectionTimeoutMS=5000)


def write_everywhere(endpoints: embedded.Endpoints) -> None:
    query(endpoints.database_url, "CREATE TABLE kept (word text)")
    query(endpoints.database_url, "INSERT INTO kept VALUES ('here')")
    with redis.Redis.from_url(endpoints.redis_url) as client:
        client.set("kept", "here")
    with documents(endpoints.mongodb_uri) as client:
        client.get_default_database().kept.insert_one({"_id": "kept", "word": "here"})


def read_everywhere(endpoints: embedded.Endpoints) -> list[Any]:
    with redis.Redis.from_url(endpoints.redis_url) as client, documents(endpoints.mongodb_uri) as mongo:
        document = mongo.get_default_database().kept.find_one({"_id": "kept"})
        return [
            query(endpoints.database_url, "SELECT word FROM kept")[0][0],
            client.get("kept"),
            document and document["word"],
        ]


def test_servers_of_an_empty_home_are_not_found(home: embedded.ServiceHome) -> None:
    assert embedded.find(home) is None
    assert embedded.status(home) == ()
    assert not home.path.exists()


def test_started_servers_are_found_and_reused(running_home: embedded.ServiceHome) -> None:
    first = pids(running_home)

    endpoints = start(running_home)

    assert embedded.find(running_home) == endpoints
    assert pids(running_home) == first
    assert None not in first.values()
    write_everywhere(endpoints)
    assert read_everywhere(endpoints) == ["here", b"here", "here"]


def test_the_database_login_owns_the_database_and_needs_its_password(
    running_home: embedded.ServiceHome,
) -> None:
    url = start(running_home).database_url

    facts = query(
        url,
        "SELECT current_user::text, rolsuper, pg_get_userbyid(datdba)::text, current_database()::text "
        "FROM pg_roles JOIN pg_database ON datname = current_database() WHERE rolname = current_user",
    )

    assert facts == [("orchestrator_login", True, "orchestrator_login", "orchestrator")]
    password = url.split("@")[0].rpartition(":")[2]
    with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
        psycopg.connect(url.replace(password, "guessed"))


def test_redis_needs_its_password_and_never_evicts(running_home: embedded.ServiceHome) -> None:
    url = start(running_home).redis_url
    port = redis.Redis.from_url(url).connection_pool.connection_kwargs["port"]

    with redis.Redis.from_url(url) as client:
        assert client.config_get("maxmemory-policy") == {"maxmemory-policy": "noeviction"}
    with (
        redis.Redis(port=port, retry=Retry(NoBackoff(), 0)) as stranger,
        pytest.raises(redis.AuthenticationError),
    ):
        stranger.ping()


def test_servers_listen_on_loopback_and_in_their_folders_only(running_home: embedded.ServiceHome) -> None:
    listening = {
        connection.laddr.ip
        for pid in pids(running_home).values()
        for connection in psutil.Process(pid).net_connections()
        if connection.status == psutil.CONN_LISTEN
    }
    sockets = {
        connection.laddr
        for pid in pids(running_home).values()
        for connection in psutil.Process(pid).net_connections("unix")
    }

    assert listening == {"127.0.0.1"}
    assert all(str(name).startswith(str(running_home.path)) for name in sockets if name)


def test_passwords_are_readable_by_their_owner_only(running_home: embedded.ServiceHome) -> None:
    endpoints = start(running_home)

    password = endpoints.redis_url.split(":")[2].split("@")[0]
    assert password in running_home.services_file.read_text()
    assert stat.S_IMODE(running_home.services_file.stat().st_mode) == 0o600
    readable = [
        path for path in running_home.path.iterdir() if path.stat().st_mode & 0o044 and path.name != "lock"
    ]
    assert readable == []
    assert not any(password in " ".join(process.cmdline()) for process in processes_in(running_home))


def test_killed_servers_start_again_on_the_same_data_at_the_same_address(
    used_home: embedded.ServiceHome,
) -> None:
    endpoints = start(used_home, durable=True)
    write_everywhere(endpoints)
    with redis.Redis.from_url(endpoints.redis_url) as client:
        client.waitaof(1, 0, 5000)  # otherwise Redis may lose its last second

    for service in embedded.SERVICES:
        kill(used_home, service)
    assert {server.state for server in embedded.status(used_home)} == {"died"}
    assert embedded.find(used_home) is None

    assert start(used_home, durable=True) == endpoints
    assert read_everywhere(endpoints) == ["here", b"here", "here"]


def test_one_dead_server_is_restarted_while_the_others_stay(home: embedded.ServiceHome) -> None:
    endpoints = start(home, "redis", "mongo")
    before = pids(home)
    kill(home, "mongo")

    assert embedded.find(home) == endpoints  # the address stays valid for anyone who reconnects
    start(home, "redis", "mongo")

    after = pids(home)
    assert after["redis"] == before["redis"]
    assert after["mongo"] not in {before["mongo"], None}


def test_two_starts_at_once_give_the_same_servers(home: embedded.ServiceHome) -> None:
    command = (*COMMAND, "start", "--fast", "--home", str(home.path))
    quick_python.begin()
    with ThreadPoolExecutor(2) as pool:
        one, other = pool.map(quick_python.run, (command, command))

    assert (one.returncode, other.returncode) == (0, 0)
    assert one.stdout == other.stdout
    assert len([process for process in processes_in(home) if process.name() == "valkey-server"]) == 1


def test_servers_outlive_the_process_that_started_them_until_stop(used_home: embedded.ServiceHome) -> None:
    quick_python.run((*COMMAND, "start", "--fast", "--home", str(used_home.path))).check_returncode()
    endpoints = embedded.find(used_home)
    assert endpoints is not None
    write_everywhere(endpoints)
    segment = shared_memory_of_database(used_home)
    assert segment in shared_memory_segments()
    maps = psutil.Process(pids(used_home)["postgres"]).memory_maps()
    assert not any(mapped.path.startswith("/dev/shm") for mapped in maps)

    embedded.stop(used_home)
    embedded.stop(used_home)

    assert processes_in(used_home) == []
    assert embedded.find(used_home) is None
    assert {server.state for server in embedded.status(used_home)} == {"stopped"}
    assert segment not in shared_memory_segments()
    assert not list(used_home.path.rglob("*.pid"))
    for server in embedded.status(used_home):
        with socket.socket() as probe:
            assert probe.connect_ex(("127.0.0.1", server.port)) != 0


def test_stop_removes_what_a_killed_database_left(used_home: embedded.ServiceHome) -> None:
    start(used_home, "postgres")
    segment = shared_memory_of_database(used_home)
    kill(used_home, "postgres")
    assert segment in shared_memory_segments()

    embedded.stop(used_home)

    assert processes_in(used_home) == []
    assert segment not in shared_memory_segments()


def test_a_frozen_server_is_stopped(home: embedded.ServiceHome) -> None:
    start(home, "redis")
    pid = pids(home)["redis"]
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)

    embedded.stop(home, ["redis"])

    assert processes_in(home) == []


def test_another_process_with_a_reused_pid_is_neither_found_nor_stopped(home: embedded.ServiceHome) -> None:
    start(home, "redis")
    embedded.stop(home)
    with subprocess.Popen(("sleep", "60")) as bystander:
        stored = json.loads(home.services_file.read_text())
        stored["servers"]["redis"] |= {"pid": bystander.pid, "started": "1"}
        home.services_file.write_text(json.dumps(stored))

        assert embedded.find(home) is None
        embedded.stop(home)

        assert bystander.poll() is None
        bystander.kill()


def test_a_stale_lock_file_with_a_living_pid_does_not_prevent_the_start(
    used_home: embedded.ServiceHome,
) -> None:
    url = start(used_home, "postgres").database_url
    kill(used_home, "postgres")
    lock_file = used_home.path / "postgres/data/postmaster.pid"
    lines = lock_file.read_text().splitlines()
    lock_file.write_text("\n".join([str(os.getpid()), *lines[1:]]) + "\n")

    assert query(start(used_home, "postgres").database_url, "SELECT 1") == [(1,)]
    assert start(used_home, "postgres").database_url == url


def test_after_a_lost_record_old_servers_are_ended_and_the_data_is_kept(
    used_home: embedded.ServiceHome,
) -> None:
    url = start(used_home, "postgres").database_url
    query(url, "CREATE TABLE kept ()")
    first = pids(used_home)["postgres"]
    used_home.services_file.write_text("{ half a fi")

    again = start(used_home, "postgres").database_url

    assert query(again, "SELECT count(*) FROM kept") == [(0,)]
    assert first not in {process.pid for process in processes_in(used_home)}


def test_a_port_that_another_program_uses_is_replaced(home: embedded.ServiceHome) -> None:
    start(home, "redis")
    embedded.stop(home)
    remembered = embedded.status(home)[0].port

    with socket.create_server(("127.0.0.1", remembered)):
        url = start(home, "redis").redis_url

    assert f":{remembered}/" not in url
    with redis.Redis.from_url(url) as client:
        assert client.ping()


def test_the_error_of_a_server_that_cannot_start_has_the_reason(used_home: embedded.ServiceHome) -> None:
    start(used_home, "postgres")
    embedded.stop(used_home)
    (used_home.path / "postgres/data/PG_VERSION").write_text("9\n")

    with pytest.raises(ServerFailed, match=r"(?s)ended while starting.*not compatible") as failure:
        start(used_home, "postgres")

    assert str(used_home.log("postgres")) in str(failure.value)


def test_a_home_can_run_some_of_the_servers(home: embedded.ServiceHome) -> None:
    endpoints = start(home, "mongo")

    assert endpoints.database_url == endpoints.redis_url == ""
    assert list(endpoints.as_environment()) == ["MONGODB_URI"]
    with pytest.raises(EmbeddedError, match="no embedded server 'oracle'"):
        start(home, "oracle")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_run_keeps_servers_up_until_it_gets_a_signal(
    home: embedded.ServiceHome, number: signal.Signals
) -> None:
    command = (*COMMAND, "run", "--fast", "--service", "redis", "--home", str(home.path))
    # As in a terminal, because a shell lets background processes ignore SIGINT.
    restore_sigint = partial(signal.signal, signal.SIGINT, signal.default_int_handler)
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, preexec_fn=restore_sigint) as runner:
        read_until(runner, lambda line: line.startswith("addresses"))
        assert embedded.find(home) is not None

        runner.send_signal(number)

        assert runner.wait(timeout=30) == 0
    assert processes_in(home) == []


def test_run_ends_with_an_error_when_a_server_dies(home: embedded.ServiceHome) -> None:
    command = (*COMMAND, "run", "--fast", "--service", "redis", "--home", str(home.path))
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as runner:
        read_until(runner, lambda line: line.startswith("addresses"))
        kill(home, "redis")

        _, complaint = runner.communicate(timeout=60)

    assert runner.returncode == 1
    assert "redis ended" in complaint


def read_until(process: subprocess.Popen[str], matches: Callable[[str], bool]) -> None:
    assert process.stdout is not None
    assert any(matches(line) for line in process.stdout)
