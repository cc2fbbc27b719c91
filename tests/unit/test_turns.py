"""Whose request comes next in a web process."""

from __future__ import annotations

import threading
from uuid import UUID

import pytest

from tenants import turns
from tenants.turns import MOST_WAITING, Turn, Turns

NOISY, QUIET, OTHER = (str(UUID(int=number)) for number in (1, 2, 3))


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


class Process:
    """A web process of 8 threads, two of them reserved, that knows the credentials of its tenants."""

    def __init__(self, *tenants: str) -> None:
        self.clock = Clock()
        self.turns: Turns[str] = Turns(8, 2, clock=self.clock)
        for tenant in tenants:
            self.arrives(tenant)
            turn = self.turns.take()
            assert turn is not None
            turn.tenant = tenant
            self.turns.end(turn, 0.0)

    def arrives(self, tenant: str, name: str = "") -> bool:
        head = f"GET / HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer of-{tenant}\r\n\r\n".encode()
        return self.turns.wait(head, name or tenant)

    def begin(self) -> list[Turn[str]]:
        started = []
        while (turn := self.turns.take()) is not None:
            started.append(turn)
        return started

    def computes(self, tenant: str, seconds: float) -> None:
        self.arrives(tenant)
        turn = self.turns.take()
        assert turn is not None
        self.turns.end(turn, seconds)


def test_waiting_requests_begin_in_turn_by_tenant_and_not_in_the_order_of_their_arrival() -> None:
    process = Process(NOISY, QUIET)
    for _ in range(5):
        process.arrives(NOISY)
    process.arrives(QUIET)

    started = [turn.item for turn in process.begin()]

    assert started.index(QUIET) < 2
    assert started.count(NOISY) == 4  # half of the threads, because another tenant is active


def test_a_single_line_may_use_all_threads_but_the_reserved_ones() -> None:
    process = Process(NOISY, QUIET)
    process.clock.now += turns.ALONE_SECONDS + 1
    for _ in range(20):
        process.arrives(NOISY)

    assert len(process.begin()) == 8
    process.arrives(QUIET)
    assert [turn.item for turn in process.begin()] == [QUIET]


def test_a_line_that_computes_much_has_one_request_at_a_time_beside_others() -> None:
    process = Process(NOISY, QUIET)
    process.computes(NOISY, 2.0)
    for _ in range(5):
        process.arrives(NOISY)

    assert len(process.begin()) == 1


def test_a_line_that_computes_much_leaves_others_three_quarters_of_the_time() -> None:
    process = Process(NOISY, QUIET)
    process.computes(NOISY, 1.0)
    process.arrives(NOISY)
    process.arrives(NOISY)
    (turn,) = process.begin()
    process.turns.end(turn, 0.2)  # another one waits already
    process.arrives(QUIET)

    assert [turn.item for turn in process.begin()] == [QUIET]
    assert process.turns.seconds_until_next() == pytest.approx(0.6)
    process.clock.now += 0.61
    assert [turn.item for turn in process.begin()] == [NOISY]


def test_a_line_with_one_request_at_a_time_never_pauses() -> None:
    process = Process(NOISY, QUIET)
    for _ in range(5):
        process.computes(NOISY, 1.0)
        process.arrives(NOISY)
        (turn,) = process.begin()
        process.turns.end(turn, 0.2)


def test_no_line_pauses_for_tenants_without_requests() -> None:
    process = Process(NOISY, QUIET)
    process.clock.now += turns.ACTIVE_SECONDS + 0.1
    process.computes(NOISY, 1.0)
    for _ in range(3):
        process.arrives(NOISY)
        process.arrives(NOISY)
        for turn in process.begin():
            process.turns.end(turn, 0.2)

    assert [turn.item for turn in process.begin()] == [NOISY]


def test_old_computing_time_does_not_count() -> None:
    process = Process(NOISY, QUIET)
    process.computes(NOISY, 2.0)
    process.clock.now += 10
    process.arrives(QUIET)
    for _ in range(8):
        process.arrives(NOISY)

    assert [turn.item for turn in process.begin()].count(NOISY) == 4


def test_callers_without_a_known_credential_leave_threads_to_tenants() -> None:
    process = Process(QUIET)
    process.clock.now += turns.ALONE_SECONDS + 1
    for number in range(20):
        process.arrives(f"wrong-{number}")
        process.turns.wait(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "nobody")
    assert len(process.begin()) == 8

    process.arrives(QUIET)

    assert [turn.item for turn in process.begin()] == [QUIET]


def test_unknown_credentials_share_one_line() -> None:
    process = Process(QUIET)
    for number in range(20):
        process.arrives(f"wrong-{number}")
    process.arrives(QUIET)

    started = [turn.item for turn in process.begin()]

    assert QUIET in started
    assert len(started) == 5  # half of the threads for all unknown credentials together, and one for QUIET


def test_credentials_of_one_tenant_share_its_line() -> None:
    process = Process(QUIET)
    for number in range(6):
        process.arrives(f"token-{number}")
        (turn,) = process.begin()
        turn.tenant = NOISY
        process.turns.end(turn, 0.0)
    for number in range(6):
        process.arrives(f"token-{number}")

    assert len(process.begin()) == 4


def test_sessions_are_distinguished_by_their_cookie() -> None:
    head = "GET / HTTP/1.1\r\nCookie: csrftoken=a; {}={}; x=y\r\n\r\n"
    one, again, other, none = (
        turns._credential_of(text.encode())
        for text in (
            head.format("sessionid", "one"), head.format("__Host-sessionid", "one"), head.format("sessionid", "two"),
            head.format("theme", "dark"),
        )
    )  # fmt: skip
    assert one == again != other
    assert none is None


def test_a_line_that_is_too_long_refuses_requests_and_does_not_affect_others() -> None:
    process = Process(NOISY, QUIET)
    assert all(process.arrives(NOISY) for _ in range(MOST_WAITING))

    assert not process.arrives(NOISY)
    assert process.arrives(QUIET)


def test_silent_tenants_are_forgotten() -> None:
    process = Process(*(str(number) for number in range(50)))
    process.clock.now += turns.ALONE_SECONDS + 1
    for _ in range(60):
        process.computes(QUIET, 0.0)

    assert len(process.turns._lines) < 10


def test_a_request_of_a_long_line_yields_to_short_lines_but_not_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    process = Process(NOISY, QUIET)
    process.computes(NOISY, 1.0)
    for tenant in (NOISY, NOISY, QUIET):
        process.arrives(tenant)
    quiet, noisy = process.begin()
    waited = threading.Event()

    def answer() -> None:
        with turns.hold_turn(process.turns, noisy):
            turns.give_way()
            waited.set()

    monkeypatch.setattr(noisy, "patience", 30.0)
    thread = threading.Thread(target=answer)
    thread.start()
    assert not waited.wait(0.1)
    process.turns.end(quiet, 0.0)
    assert waited.wait(30)
    thread.join()

    process.arrives(QUIET)
    (again,) = process.begin()
    impatient = Turn(NOISY, None, NOISY, patience=0.0)
    process.turns.give_way(impatient)  # returns
    process.turns.end(again, 0.0)
