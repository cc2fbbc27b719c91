"""A real web process: tenants share its threads fairly, and slow clients hold no thread."""

from __future__ import annotations

import http.client
import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from uuid import UUID

import pytest

from orchestrator.embedded import server
from orchestrator.processes.specs import KEEP_ALIVE_SECONDS
from orchestrator.web_worker import LONGEST_HEAD
from tenants.turns import MOST_WAITING
from tests.quick_python import Program

ROOT = Path(__file__).resolve().parents[3]
NOISY, QUIET, STRANGER = "1", "2", "nobody-knows-me"
THREADS = 8


@pytest.fixture
def new_web() -> Iterator[int]:
    """The port of a web process with 8 threads, started as in production, which knows no tenant yet."""
    with _run_web() as port:
        yield port


@pytest.fixture(scope="module")
def web() -> Iterator[int]:
    """The same for tests after which it is as before: none of their requests waits or computes."""
    with _run_web() as port:
        yield port


@contextmanager
def _run_web() -> Iterator[int]:
    port = server.keep_or_choose_port(None)
    command = [
        sys.executable, "-m", "gunicorn", "tests.integration.web_turns.app:application", "--no-control-socket",
        "--worker-class=orchestrator.web_worker.StreamingWorker", "--workers=1", f"--threads={THREADS}", f"--bind=127.0.0.1:{port}",
        f"--keep-alive={KEEP_ALIVE_SECONDS}",
    ]  # fmt: skip
    process = Program(command, cwd=ROOT, stderr=subprocess.DEVNULL)
    try:
        _until(lambda: _listens(port))
        yield port
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _listens(port: int) -> bool:
    try:
        return ask(port, "/", STRANGER)[0] == 200
    except OSError:
        return False


def _until(condition) -> None:  # type: ignore[no-untyped-def]
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def ask(port: int, path: str, tenant: str, timeout: float = 20) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)
    try:
        connection.request("GET", path, headers={"Authorization": f"Bearer {tenant}"})
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def introduce(port: int, *tenants: str) -> None:
    """Let the process learn which credentials are those of these tenants. It does so only after it has sent an answer."""
    for tenant in tenants:
        ask(port, "/", tenant)
    _until(lambda: ask(port, "/known", STRANGER)[1] == str(len(tenants)))


def test_a_long_query_is_accepted_and_a_longer_one_refused_like_by_the_api(web: int) -> None:
    ids = ",".join(str(UUID(int=number)) for number in range(215))

    accepted = ask(web, f"/?ids={ids}", STRANGER)
    status, body = ask(web, f"/?ids={ids},{ids}", STRANGER)

    assert accepted[0] == 200
    assert (status, json.loads(body)["status"], json.loads(body)["code"]) == (414, 414, "uri_too_long")


def test_waiting_requests_of_one_tenant_do_not_hold_up_another(new_web: int) -> None:
    introduce(new_web, NOISY, QUIET)
    with ThreadPoolExecutor(30) as clients:
        waiting = [clients.submit(ask, new_web, "/wait", NOISY) for _ in range(30)]
        _until(lambda: ask(new_web, f"/waiting?tenant={NOISY}", QUIET)[1] == str(THREADS // 2))
        try:
            assert ask(new_web, "/", QUIET) == (200, "1")
            assert ask(new_web, f"/waiting?tenant={NOISY}", QUIET)[1] == str(THREADS // 2)
        finally:
            ask(new_web, "/open", QUIET)
        assert {each.result()[0] for each in waiting} == {200}


def test_a_newcomer_is_answered_although_one_tenant_uses_all_threads(new_web: int) -> None:
    introduce(new_web, NOISY)
    with ThreadPoolExecutor(20) as clients:
        waiting = [clients.submit(ask, new_web, "/wait", NOISY) for _ in range(20)]
        try:
            _until(lambda: ask(new_web, f"/waiting?tenant={NOISY}", STRANGER)[1] == str(THREADS))
            assert ask(new_web, "/", QUIET) == (200, "1")
        finally:
            ask(new_web, "/open", QUIET)
        assert {each.result()[0] for each in waiting} == {200}


def test_a_tenant_that_computes_much_gets_one_thread_while_others_are_active(new_web: int) -> None:
    introduce(new_web, NOISY, QUIET)
    ask(new_web, "/forget-nothing", QUIET)
    # The time of a request is counted after its answer was sent, and so before the end of the next one.
    for _ in range(2):
        ask(new_web, "/compute?seconds=0.2", NOISY)

    with ThreadPoolExecutor(4) as clients:
        answers = [clients.submit(ask, new_web, "/compute?seconds=0.1", NOISY) for _ in range(4)]

    assert [each.result() for each in answers] == [(200, "1")] * 4


def test_a_full_queue_of_requests_is_answered_429_at_once(new_web: int) -> None:
    introduce(new_web, NOISY, QUIET)
    count = THREADS + MOST_WAITING + 20
    with ThreadPoolExecutor(count) as clients:
        waiting = [clients.submit(ask, new_web, "/wait", NOISY) for _ in range(count)]
        _until(lambda: sum(each.done() for each in waiting) >= 20)
        assert ask(new_web, "/", QUIET)[0] == 200
        ask(new_web, "/open", QUIET)
        statuses = [each.result()[0] for each in waiting]

    assert set(statuses) == {200, 429}
    assert statuses.count(429) <= 24


def test_a_thousand_incomplete_requests_do_not_hold_up_others(web: int) -> None:
    with ExitStack() as stack:
        for _ in range(1000):
            client = stack.enter_context(socket.create_connection(("127.0.0.1", web), timeout=60))
            client.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n")
        assert ask(web, "/", QUIET) == (200, "1")


def test_a_thousand_idle_connections_do_not_hold_up_others(web: int) -> None:
    with ExitStack() as stack:
        for _ in range(1_000):
            client = stack.enter_context(socket.create_connection(("127.0.0.1", web), timeout=60))
            client.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            assert client.recv(4096).startswith(b"HTTP/1.1 200")
        for _ in range(THREADS * 2):
            stack.enter_context(socket.create_connection(("127.0.0.1", web), timeout=60))

        assert ask(web, "/", QUIET, timeout=5) == (200, "1")


@pytest.mark.parametrize(
    ("beginning", "status"),
    [
        (b"GET / HTTP/1.1\r\nHost: x\r\n" + b"X-Long: " + b"a" * LONGEST_HEAD, 431),
        (b"GET /healthz HTTP/1.1\r\n" + b"X: y\r\n" * LONGEST_HEAD, 431),
        (b"GET /" + b"a" * LONGEST_HEAD, 414),
    ],
    ids=["a header", "headers of a probe", "an address"],
)
def test_endless_request_heads_are_refused_and_do_not_hold_up_others(
    web: int, beginning: bytes, status: int
) -> None:
    with ExitStack() as stack:
        clients = [
            stack.enter_context(socket.create_connection(("127.0.0.1", web), timeout=20))
            for _ in range(2 * THREADS)
        ]
        for client in clients:
            client.sendall(beginning)

        assert ask(web, "/", QUIET)[0] == 200
        assert ask(web, "/healthz", QUIET)[0] == 200
        for client in clients:
            assert client.recv(4096).startswith(f"HTTP/1.1 {status} ".encode())


def test_unread_bodies_that_never_arrive_do_not_delay_probes(web: int) -> None:
    with ExitStack() as stack:
        for _ in range(40):
            client = stack.enter_context(socket.create_connection(("127.0.0.1", web), timeout=20))
            client.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n")

        assert ask(web, "/healthz", QUIET)[0] == 200


def test_a_connection_stays_open_after_a_body_that_was_not_read(web: int) -> None:
    with closing(http.client.HTTPConnection("127.0.0.1", web, timeout=20)) as connection:
        connection.connect()
        first = connection.sock
        for _ in range(2):
            connection.request("POST", "/", body=b"abc")
            assert connection.getresponse().read() == b"1"
        assert connection.sock is first


def test_an_answer_says_that_its_connection_closes_because_too_much_of_the_body_was_not_read(
    web: int,
) -> None:
    body, kept = b"a" * 1_000_000, []
    for path in ("/", "/body"):
        with closing(http.client.HTTPConnection("127.0.0.1", web, timeout=20)) as connection:
            connection.request("POST", path, body=body)
            kept.append(connection.getresponse().headers["Connection"])

    assert kept == ["close", "keep-alive"]


def test_a_request_head_in_pieces_is_read(web: int) -> None:
    with socket.create_connection(("127.0.0.1", web), timeout=60) as client:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for piece in (b"GET / HT", b"TP/1.1\r\nHo", b"st: x\r\nAuthorization: Bea", b"rer 5\r\n\r", b"\n"):
            client.sendall(piece)
            time.sleep(0.05)
        assert client.recv(4096).startswith(b"HTTP/1.1 200")
        client.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        assert client.recv(4096).startswith(b"HTTP/1.1 200")


def test_pipelined_requests_are_all_answered(web: int) -> None:
    one = b"POST /body HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabc"
    with socket.create_connection(("127.0.0.1", web), timeout=60) as client:
        client.sendall(one * 3)
        received = b""
        while received.count(b"HTTP/1.1 200") < 3 or not received.endswith(b"\r\n\r\n3"):
            received += client.recv(4096)


def test_clients_that_disconnect_in_their_request_head_leave_nothing_behind(web: int) -> None:
    for _ in range(50):
        with socket.create_connection(("127.0.0.1", web), timeout=60) as client:
            client.sendall(b"GET / HTTP/1.1\r\n")

    assert ask(web, "/", QUIET) == (200, "1")
