"""Event streams from a real web process: contents, delay, access, limits, and no thread per stream."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from time import monotonic
from types import SimpleNamespace
from typing import Any
from unittest import mock
from uuid import UUID, uuid4

import httpx2
import psutil
import pytest
from django.conf import settings
from django.contrib.auth.models import User
from django.db import connections, transaction
from django.db.models.functions import Now
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone
from redis.exceptions import TimeoutError as RedisTimeout

from agents.contracts import Accepted
from orchestrator.processes.specs import standard_processes
from tenants import break_glass, keys, members, redis, tokens
from tenants.context import APP, OWNER, system_scope, tenant_scope
from tenants.events import connection_limits, hub, log
from tenants.events.announcements import Announcement
from tenants.events.log import EventFilter
from tenants.events.stream import KEEPALIVE, Stream, Subscriber, still_allowed
from tenants.limiter import Breaker
from tenants.models import ApiToken, Membership, Role, Tenant
from tenants.models.audit import BreakGlass
from tenants.models.events import EventLog
from tenants.principals import Principal
from tests import servers
from tests.accepted_work import accept_work
from tests.cleaning import empty_redis
from tests.engine import Engine, eventually, in_another_thread, no_threads, simultaneously
from tests.event_streams import Follower, parse_event
from tests.integration.test_events import raise_events
from tests.quick_python import Program
from tests.superusers import browser_of, create_superuser

pytestmark = pytest.mark.long

KEEPALIVE_SECONDS = 2


@dataclass(frozen=True)
class WebProcess:
    port: int
    pid: int

    def threads(self) -> int:
        """The number of threads of the process and its children."""
        parent = psutil.Process(self.pid)
        return sum(process.num_threads() for process in (parent, *parent.children(recursive=True)))


@pytest.fixture(scope="module")
def web(django_db_setup: None) -> Iterator[WebProcess]:
    """A standard web process with 8 threads and higher limits of streams."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        number = free.getsockname()[1]
    [spec] = [s for s in standard_processes(port=number, flower_port=0, concurrency=None) if s.name == "web"]
    limits = {
        "ORCHESTRATOR_STREAMS_PER_TENANT": "300",
        "ORCHESTRATOR_STREAMS_PER_CALLER": "300",
        "ORCHESTRATOR_STREAM_KEEPALIVE_SECONDS": str(KEEPALIVE_SECONDS),
    }
    process = Program(spec.argv, env={**environment(), **spec.env, **limits})
    eventually(lambda: is_healthy(number), 60)
    yield WebProcess(number, process.pid)
    process.terminate()
    process.wait(60)


@pytest.fixture
def follow(web: WebProcess, database: None) -> Iterator[Callable[..., Follower]]:
    """`follow(secret, ...)`: a client of a stream, closed at the end."""
    followers: list[Follower] = []

    def start_following(secret: str, *more: Any, **options: Any) -> Follower:
        followers.append(Follower(web.port, secret, *more, **options))
        return followers[-1]

    yield start_following
    for follower in followers:
        follower.close()


def is_healthy(port: int) -> bool:
    with contextlib.suppress(httpx2.HTTPError):
        return httpx2.get(f"http://127.0.0.1:{port}/healthz", timeout=30).status_code == 200
    return False


EVENTS = "/api/v1/events/"
NOTHING = '{"kind": "nothing", "activity": "00000000-0000-0000-0000-000000000000", "data": {}}'


def token(tenant: Tenant, role: str = "viewer") -> tuple[ApiToken, str]:
    return tokens.create(tenant, role, f"{role} {monotonic()}")


def test_a_stream_carries_events_and_continues_after_the_last_one_seen(
    follow: Callable[..., Follower], engine: Engine, tenant: Tenant, other_tenant: Tenant
) -> None:
    _, secret = token(tenant)
    raise_events(tenant, 2)
    stream = follow(secret)
    engine.serve(tenant)
    raise_events(other_tenant)
    [activity] = engine.submit(tenant)
    engine.drain()

    events = stream.next_events(4)
    stream.close()
    raise_events(tenant, 3)
    again = follow(secret, last_seen=events[-1].id).next_events(3)

    assert stream.headers["content-type"] == "text/event-stream"
    assert [one.event for one in events] == [
        "activity.created",
        "activity.assigned",
        "activity.started",
        "activity.completed",
    ]
    assert [one.id for one in events] == [3, 4, 5, 6]
    assert {UUID(one.data["activity"]) for one in events} == {activity}
    assert [(one.id, one.event) for one in again] == [(n, "alert.raised") for n in (7, 8, 9)]


def test_a_browser_that_repeats_its_address_continues_after_the_last_event_that_it_has_seen(
    follow: Callable[..., Follower], tenant: Tenant
) -> None:
    _, secret = token(tenant)
    raise_events(tenant, 3)

    [first] = follow(secret, "?after=1").next_events(1)
    [next_one] = follow(secret, "?after=1", last_seen=first.id).next_events(1)

    assert (first.id, next_one.id) == (2, 3)


def test_a_stream_announces_new_log_lines_which_are_not_stored_as_events(
    follow: Callable[..., Follower], engine: Engine, tenant: Tenant, other_tenant: Tenant
) -> None:
    _, secret = token(tenant)
    engine.serve(tenant)
    engine.agent.behaviour = lambda request: Accepted()
    activity_id, agent = accept_work(engine, tenant)
    _, other = accept_work(engine, tenant)
    everything, this, kind, of_a_pipeline, theirs = (
        follow(secret),
        follow(secret, f"?activity={activity_id}"),
        follow(secret, "?kind=run_log&kind=alert.raised"),
        follow(secret, f"?pipeline_run={activity_id}&kind=run_log"),
        follow(token(other_tenant)[1]),
    )
    for stream in (everything, this, kind, of_a_pipeline, theirs):
        next(stream.blocks())  # wait until the stream is followed
    eventually(lambda: redis.client().publish(keys.announcements(tenant.pk), NOTHING) > 0)

    for number in range(5):
        agent.post("log", {"lines": [{"kind": "text", "text": f"line {number}"}]})
    other.post("log", {"lines": [{"kind": "text", "text": "of another run"}]})

    def logs(stream: Follower, *expected: tuple[UUID, int]) -> list[Any]:
        """The announcements of logs in the stream, until all of these have arrived."""
        announcements: list[Any] = []
        while not {*expected} <= {
            (UUID(one.data["data"]["run"]), one.data["data"]["last"]) for one in announcements
        }:
            announcements += [one for one in stream.next_events(1) if one.event == "run_log"]
        return announcements

    everywhere = logs(everything, (agent.run_id, 5), (other.run_id, 1))
    assert {one.id for one in everywhere} == {None}
    assert everywhere[0].data | {"data": None} == {
        "kind": "run_log", "activity": str(activity_id), "pipeline_run": None, "data": None,
    }  # fmt: skip
    assert {one.data["activity"] for one in logs(this, (agent.run_id, 5))} == {str(activity_id)}
    logs(kind, (agent.run_id, 5), (other.run_id, 1))
    raise_events(other_tenant)
    assert [one.event for one in theirs.next_events(1)] == ["alert.raised"]
    assert next(of_a_pipeline.blocks()).startswith(b":"), "only a keep-alive"
    page = httpx2.get(
        f"http://127.0.0.1:{everything.port}{EVENTS}?kind=run_log",
        headers={"Authorization": f"Bearer {secret}", "Accept": "application/json"},
    )
    assert page.json()["results"] == []


def test_announcements_about_one_run_are_sent_together_and_not_more_often_than_twice_a_second(
    tenant: Tenant,
) -> None:
    def announce(last: int) -> None:
        announcement = Announcement(tenant.pk, "run_log", tenant.pk, {"run": "1", "last": last})
        sender._receive_announcements(SimpleNamespace(receive=lambda: [announcement]))  # type: ignore[arg-type]

    def sent(now: float) -> list[int]:
        stream.waiting.clear()
        sender._send_announcements(now)
        return [parse_event(block).data["data"]["last"] for block in stream.waiting.split(b"\n\n")[:-1]]

    sender, stream = hub.Hub(), Stream(principal(token(tenant)[1]), EventFilter(), 0, "seat")
    sender._open[tenant.pk].add(stream)
    for number in (1, 2, 3):
        announce(number)
    assert sent(100.0) == [3]
    announce(4)
    assert sent(100.4) == []
    assert sent(100.5) == [4]


def test_nobody_waits_for_a_busy_hub() -> None:
    busy = hub.Hub()
    busy._waker, unread = socket.socketpair()

    def displace() -> None:
        for _ in range(5_000):
            busy.displace(["seat"])

    calls = threading.Thread(target=displace, daemon=True)
    calls.start()
    calls.join(30)

    assert not calls.is_alive()
    busy._waker.close()
    unread.close()


def _broken_flush(one_hub: hub.Hub) -> Any:
    return mock.patch.object(one_hub, "_flush", side_effect=ArithmeticError)


@pytest.mark.parametrize("failure", [_broken_flush, lambda one_hub: no_threads()], ids=["error", "no thread"])
def test_a_failing_hub_ends_its_streams_and_the_next_one_is_served_again(
    failure: Callable[[hub.Hub], Any], tenant: Tenant
) -> None:
    def adopt() -> socket.socket:
        client, served = socket.socketpair()
        client.settimeout(30)
        caller = principal(token(tenant)[1])
        one_hub.adopt(Stream(caller, EventFilter(), 0, "seat", socket=served))
        return client

    one_hub = hub.Hub()
    with failure(one_hub), adopt() as client:
        assert client.recv(100) == b""
    raise_events(tenant)

    with adopt() as client:
        assert b"alert.raised" in client.recv(4096)

    eventually(lambda: one_hub._waker is None)


def test_a_stream_can_be_filtered_and_a_late_one_starts_with_a_reset(
    follow: Callable[..., Follower], engine: Engine, tenant: Tenant
) -> None:
    _, secret = token(tenant)
    raise_events(tenant, 3)
    log.number(tenant.pk)
    with transaction.atomic(using=OWNER), connections[OWNER].cursor() as cursor:
        cursor.execute("UPDATE tenants_event SET at = at - interval '8 days'")
    log.purge_logs()
    late = follow(secret, last_seen=1)
    filtered = follow(secret, "?kind=activity.created&after=3")

    raise_events(tenant)
    engine.submit(tenant)

    [reset, first] = late.next_events(2)
    assert (reset.event, reset.id, reset.data) == ("reset", 3, {"oldest": 4, "last": 3})
    assert (first.event, first.id) == ("alert.raised", 4)
    assert [(one.event, one.id) for one in filtered.next_events(1)] == [("activity.created", 5)]


def test_many_streams_occupy_no_thread_and_get_the_events_of_their_tenant(
    web: WebProcess, follow: Callable[..., Follower], tenant: Tenant, other_tenant: Tenant
) -> None:
    (_, secret), (_, theirs) = token(tenant), token(other_tenant)
    streams = [follow(secret if n % 4 else theirs) for n in range(80)]

    pages = [
        httpx2.get(
            f"http://127.0.0.1:{web.port}/api/v1/activities/",
            headers={"Authorization": f"Bearer {secret}"},
            timeout=60,
        ).status_code
        for _ in range(20)
    ]
    raise_events(tenant)

    assert {stream.status for stream in streams} == {200}
    assert pages == [200] * 20
    assert web.threads() < 50
    kinds = [stream.next_events(1)[0].event for stream in streams if stream.secret == secret]
    assert kinds == ["alert.raised"] * 60
    silent = [stream for stream in streams if stream.secret == theirs]
    for stream in silent:
        stream.socket.setblocking(False)
    assert all(b"event:" not in received_by(stream) for stream in silent), (
        "streams of another tenant get nothing"
    )


def received_by(stream: Follower) -> bytes:
    try:
        return stream._reader.read1(65_536)
    except (BlockingIOError, OSError):
        return b""


def test_revoking_a_token_ends_only_its_stream_before_its_third_keep_alive(
    follow: Callable[..., Follower], tenant: Tenant
) -> None:
    (revoked, secret), (_, kept) = token(tenant), token(tenant)
    ending, staying = follow(secret), follow(kept)
    next(ending.blocks())

    tokens.revoke(revoked)

    assert list(ending.blocks()) in ([KEEPALIVE.strip() % 0] * count for count in range(3))
    raise_events(tenant)
    assert staying.next_events(1)[0].event == "alert.raised"
    eventually(lambda: follow(secret).status == 401)  # tokens are cached for a second


def test_an_idle_stream_sends_keep_alives_with_its_position(
    follow: Callable[..., Follower], tenant: Tenant
) -> None:
    blocks = follow(token(tenant)[1], "?kind=dead_letter").blocks()
    next(blocks)
    assert next(blocks) == b": still here\nid: 0"

    raise_events(tenant, 3)

    assert next(block for block in blocks if block != KEEPALIVE.strip() % 0) == b": still here\nid: 3"


def test_a_disconnected_client_frees_its_seat(follow: Callable[..., Follower], tenant: Tenant) -> None:
    streams = [follow(token(tenant)[1]) for _ in range(3)]
    seats = keys.seats_of_tenant(tenant.pk)
    assert redis.client().zcard(seats) == 3

    streams[0].close()

    eventually(lambda: redis.client().zcard(seats) == 2)


def test_a_stream_above_the_limit_is_refused(api: Callable[..., Any], tenant: Tenant, settings: Any) -> None:
    settings.ORCHESTRATOR_STREAMS_PER_CALLER, settings.ORCHESTRATOR_STREAMS_PER_TENANT = 2, 3
    one, other = api("viewer"), api("viewer", name="other")

    statuses = [client.get(EVENTS).status_code for client in (one, one, one, other, other)]
    full = one.get(EVENTS)

    assert statuses == [200, 200, 429, 200, 429]
    assert (full.json()["code"], full["Retry-After"]) == ("too_many_streams", "5")


@contextlib.contextmanager
def stream_of_this_process(api: Callable[..., Any], tenant: Tenant) -> Iterator[Callable[[], int | None]]:
    """Follow a stream that stays in its request, as in any other server. Yield a function that waits for the next event's number."""
    answer = api("viewer").get(EVENTS, headers={"Accept": "text/event-stream"})
    parts = iter(answer.streaming_content)
    assert parse_event(next(parts).strip()).id == 0
    with system_scope():
        eventually(EventLog.objects.filter(tenant=tenant, listened_until__gt=Now()).exists)
    yield lambda: parse_event(next(part for part in parts if b"event:" in part).strip()).id
    answer.close()
    eventually(lambda: hub.here().size() == 0)
    eventually(lambda: "event-hub" not in {thread.name for thread in threading.enumerate()})


def test_in_any_other_server_the_stream_stays_in_its_request_and_gets_events_when_they_are_committed(
    api: Callable[..., Any], tenant: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub, "CHECK_SECONDS", 3600.0)  # so that only a notification can tell of an event
    with stream_of_this_process(api, tenant) as next_event:
        in_another_thread(lambda: raise_events(tenant))
        assert next_event() == 1


def test_streams_continue_while_the_listener_has_no_connection(
    api: Callable[..., Any], tenant: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub, "RETRY_SECONDS", 3600.0)  # so that no notification tells of the event
    with stream_of_this_process(api, tenant) as next_event:
        with connections[OWNER].cursor() as cursor:
            cursor.execute(
                "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity"
                " WHERE datname = current_database() AND query LIKE 'LISTEN%%' AND pid <> pg_backend_pid()"
            )
        in_another_thread(lambda: raise_events(tenant))
        assert next_event() == 1


def test_one_pass_of_the_hub_sends_new_events_to_all_streams_of_a_tenant(tenant: Tenant) -> None:
    subscriber = principal(token(tenant)[1])
    statements = []
    for count in (1, 150):
        raise_events(tenant)
        log.number(tenant.pk)
        streams = [Stream(subscriber, EventFilter(), len(statements), "seat") for _ in range(count)]
        with CaptureQueriesContext(connections[APP]) as queries:
            assert hub.send_events(tenant.pk, streams)
        statements.append(len(queries))
        assert [each.waiting.count(b"event: alert.raised") for each in streams] == [1] * count

    assert statements[0] == statements[1]


def test_a_stream_that_catches_up_does_not_delay_others(
    tenant: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub, "EVENTS_AT_ONCE", 3)
    raise_events(tenant, 10)
    subscriber = principal(token(tenant)[1])
    late, current = (Stream(subscriber, EventFilter(), position, "seat") for position in (0, 9))

    assert hub.send_events(tenant.pk, [late, current])
    assert (late.position, current.position) == (3, 10)
    while hub.send_events(tenant.pk, [late, current]):
        pass

    assert [parse_event(block).id for block in late.waiting.split(b"\n\n")[:-1]] == list(range(1, 11))
    assert [parse_event(block).id for block in current.waiting.split(b"\n\n")[:-1]] == [10]


def test_a_stream_whose_last_event_was_lost_with_a_restored_database_begins_again(tenant: Tenant) -> None:
    raise_events(tenant, 2)
    stream = Stream(principal(token(tenant)[1]), EventFilter(), 5, "seat")

    hub.send_events(tenant.pk, [stream])
    raise_events(tenant)
    hub.send_events(tenant.pk, [stream])

    sent = [parse_event(block) for block in stream.waiting.split(b"\n\n")[:-1]]
    assert [(each.event, each.id) for each in sent] == [("reset", 2), ("alert.raised", 3)]


def test_a_client_that_reads_nothing_is_disconnected(tenant: Tenant, monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        stream = Stream(principal(token(tenant)[1]), EventFilter(), 0, "seat", socket=ours)
        while not stream.is_full:
            stream.queue(b"x" * 100_000)
            assert stream.flush()
        assert stream.flush()
        monkeypatch.setattr("tenants.events.stream.PATIENCE_SECONDS", 0.0)
        assert not stream.flush()


def test_revoked_tokens_and_ended_sessions_lose_their_streams(tenant: Tenant, other_tenant: Tenant) -> None:
    kept, (revoked, secret) = principal(token(tenant)[1]), token(tenant)
    gone = principal(secret)
    tokens.revoke(revoked)
    eva = User.objects.create_user("eva")
    with tenant_scope(tenant.pk):
        Membership.objects.create(tenant=tenant, user=eva, role="viewer")
    person = Subscriber(members.principal_of(eva), "no such session")

    assert still_allowed([kept, gone, person]) == {kept}


@pytest.mark.parametrize("change", ["lower role", "no membership"])
def test_a_token_loses_its_stream_when_its_person_loses_rights(tenant: Tenant, change: str) -> None:
    eva = User.objects.create_user("eva")
    with tenant_scope(tenant.pk):
        Membership.objects.create(tenant=tenant, user=eva, role="operator")
    subscriber = principal(tokens.create(tenant, "operator", "eva's", user_id=eva.pk)[1])
    assert still_allowed([subscriber]) == {subscriber}

    with tenant_scope(tenant.pk):
        own = Membership.objects.filter(user=eva)
        own.update(role="viewer") if change == "lower role" else own.delete()

    assert still_allowed([subscriber]) == set()


def test_a_member_keeps_a_stream_while_session_and_role_are_unchanged(tenant: Tenant) -> None:
    eva = User.objects.create_user("eva")
    with tenant_scope(tenant.pk):
        Membership.objects.create(tenant=tenant, user=eva, role="operator")
    client = Client()
    client.force_login(eva)
    subscriber = Subscriber(members.principal_of(eva), client.session.session_key)
    assert still_allowed([subscriber]) == {subscriber}

    with tenant_scope(tenant.pk):
        Membership.objects.filter(user=eva).update(role="viewer")
    assert still_allowed([subscriber]) == set()

    with tenant_scope(tenant.pk):
        Membership.objects.filter(user=eva).update(role="operator")
    assert still_allowed([subscriber]) == {subscriber}
    client.logout()
    assert still_allowed([subscriber]) == set()


def test_a_changed_password_ends_the_streams_of_its_sessions(tenant: Tenant) -> None:
    eva = User.objects.create_user("eva", password="a long password")
    with tenant_scope(tenant.pk):
        Membership.objects.create(tenant=tenant, user=eva, role="viewer")
    subscriber = Subscriber(members.principal_of(eva), browser_of(eva).session.session_key)
    assert still_allowed([subscriber]) == {subscriber}

    eva.set_password("another long password")
    eva.save()

    assert still_allowed([subscriber]) == set()
    again = Subscriber(members.principal_of(eva), browser_of(eva).session.session_key)
    assert still_allowed([subscriber, again]) == {again}


def test_a_superuser_keeps_a_stream_while_break_glass_or_membership_lasts(
    tenant: Tenant, other_tenant: Tenant
) -> None:
    root = create_superuser()
    session = browser_of(root).session.session_key
    with tenant_scope(other_tenant.pk):
        Membership.objects.create(tenant=other_tenant, user=root, role="viewer")
    by_break_glass = Subscriber(members.principal_of(root, "acme"), session)
    by_membership = Subscriber(members.principal_of(root, "globex"), session)
    both = [by_break_glass, by_membership]
    assert still_allowed(both) == set(both)

    [glass] = break_glass.list_open(root)
    break_glass.end(root, glass.pk)
    assert still_allowed(both) == {by_membership}

    with tenant_scope(other_tenant.pk):
        Membership.objects.filter(user=root).delete()
    assert still_allowed(both) == set()


def test_a_break_glass_stream_ends_with_its_session(tenant: Tenant) -> None:
    root = create_superuser()
    subscriber = Subscriber(members.principal_of(root, "acme"), browser_of(root).session.session_key)
    assert still_allowed([subscriber]) == {subscriber}

    with system_scope():
        BreakGlass.objects.update(expires_at=timezone.now())

    assert still_allowed([subscriber]) == set()


def test_seats_expire_and_are_restored_after_a_wipe_of_redis(tenant: Tenant, settings: Any) -> None:
    settings.ORCHESTRATOR_STREAMS_PER_CALLER = 1
    caller = principal(token(tenant)[1]).principal
    seat = connection_limits.take(caller).seat
    with pytest.raises(connection_limits.TooManyStreams):
        connection_limits.take(caller)
    empty_redis()

    connection_limits.hold(tenant.pk, [(caller, seat)])
    with pytest.raises(connection_limits.TooManyStreams):
        connection_limits.take(caller)
    connection_limits.leave(caller, seat)
    lapsing = connection_limits.take(caller).seat
    with pytest.raises(connection_limits.TooManyStreams):
        connection_limits.take(caller)
    for seats in (keys.seats_of_caller(caller), keys.seats_of_tenant(tenant.pk)):
        redis.client().zadd(seats, {lapsing: 1})  # it has expired
    connection_limits.take(caller)


def test_a_frozen_redis_makes_the_thread_of_all_streams_wait_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def time_out() -> Any:
        asked.append("Redis")
        raise RedisTimeout

    monkeypatch.setattr(connection_limits, "_client", time_out)
    monkeypatch.setattr(connection_limits, "_breaker", Breaker(seconds=3600.0))
    callers = [Principal(uuid4(), "acme", Role.VIEWER, "token:board", token_id=uuid4()) for _ in range(3)]

    for caller in callers:
        assert connection_limits.hold(caller.tenant_id, [(caller, "seat")]) == frozenset()
        connection_limits.leave(caller, "seat")

    assert asked == ["Redis"]
    assert connection_limits.take(callers[0]).displaced == frozenset()


def test_a_caller_can_displace_only_its_own_oldest_seat(tenant: Tenant, settings: Any) -> None:
    settings.ORCHESTRATOR_STREAMS_PER_CALLER, settings.ORCHESTRATOR_STREAMS_PER_TENANT = 3, 4
    mine, other, third = (principal(token(tenant)[1]).principal for _ in range(3))
    seats = [connection_limits.take(mine, displacing=True).seat for _ in range(3)]
    theirs = connection_limits.take(other, displacing=True).seat

    again = connection_limits.take(mine, displacing=True)
    with pytest.raises(connection_limits.TooManyStreams):
        connection_limits.take(third, displacing=True)

    assert again.displaced == {seats[0]}
    held = [(mine, seat) for seat in (*seats, again.seat)]
    assert connection_limits.hold(tenant.pk, [*held, (other, theirs)]) == {seats[0]}, (
        "the displaced seat is not held any more"
    )
    assert redis.client().zcard(keys.seats_of_caller(mine)) == 3
    connection_limits.leave(mine, again.seat)
    assert connection_limits.take(mine, displacing=True).displaced == frozenset()


def test_concurrent_callers_never_exceed_the_limit_of_seats(tenant: Tenant, settings: Any) -> None:
    settings.ORCHESTRATOR_STREAMS_PER_CALLER = 5
    caller = principal(token(tenant)[1]).principal

    seats = simultaneously(*[lambda: connection_limits.take(caller, displacing=True)] * 20)

    remaining = {one.seat for one in seats} - set[str]().union(*(one.displaced for one in seats))
    held = {seat.decode() for seat in redis.client().zrange(keys.seats_of_caller(caller), 0, -1)}
    assert (len(remaining), remaining) == (5, held)


def test_a_client_that_disconnects_before_its_stream_starts_frees_its_seat(
    api: Callable[..., Any], tenant: Tenant
) -> None:
    answer = api("viewer").get(EVENTS, headers={"Accept": "text/event-stream"})
    assert redis.client().zcard(keys.seats_of_tenant(tenant.pk)) == 1

    answer.close()

    assert redis.client().zcard(keys.seats_of_tenant(tenant.pk)) == 0


def principal(secret: str) -> Subscriber:
    return Subscriber(tokens.principal_of(secret))


def environment() -> dict[str, str]:
    """The environment of a process on the databases of the tests."""
    return {
        **os.environ,
        "DATABASE_URL": servers.database_url(settings.DATABASES["owner"]["NAME"]),
        "REDIS_URL": servers.redis_url(),
        "CELERY_BROKER_URL": settings.CELERY_BROKER_URL,
        "MONGODB_URI": settings.MONGODB_URI,
        "ORCHESTRATOR_REDIS_PREFIX": settings.ORCHESTRATOR_REDIS_PREFIX,
    }
