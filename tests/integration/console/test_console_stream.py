"""The live stream of pages: for signed-in members of the tenant, continuing after the last event seen."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.test import Client

from activities.submission import NewActivity, submit
from tenants.context import tenant_scope
from tenants.events import log
from tenants.models import Tenant
from tests.cases import in_one_test
from tests.console_user import Person
from tests.engine import Engine
from tests.event_streams import parse_event
from tests.pages import end_streams

LIVE = "/live/"


@pytest.fixture(autouse=True)
def _streams_end(engine: Engine) -> Iterator[None]:
    yield
    end_streams()


def work(tenant: Tenant, name: str = "Bees") -> Any:
    with tenant_scope(tenant.pk):
        return submit([NewActivity(name=name, agent_role="strategy-writer")], actor="token:planner")[0].id


def next_events(answer: Any, count: int) -> list[Any]:
    """Return the next `count` events of a stream in this process."""
    events, text = [], b""
    for piece in answer.streaming_content:
        text += piece
        while b"\n\n" in text:
            block, _, text = text.partition(b"\n\n")
            event = parse_event(block)
            if event.data is not None:
                events.append(event)
        if len(events) >= count:
            break
    answer.close()
    return events


def test_the_stream_continues_after_the_last_event_seen(tenant: Tenant, ann: Person) -> None:
    work(tenant)
    with tenant_scope(tenant.pk):
        log.number(tenant.pk)
        _, last = log.position_of_log(tenant.pk)
    second = work(tenant, "Wasps")

    by_header = ann.browser.get(f"{LIVE}?tenant=acme", headers={"Last-Event-ID": str(last)})
    by_address = ann.browser.get(f"{LIVE}?tenant=acme&after={last}")

    for answer in (by_header, by_address):
        assert (answer.status_code, answer["Content-Type"]) == (200, "text/event-stream")
        (event,) = next_events(answer, 1)
        assert (event.id, event.event, event.data["activity"]) == (last + 1, "activity.created", str(second))


def test_the_stream_can_be_limited_to_one_activity(tenant: Tenant, ann: Person) -> None:
    work(tenant), work(tenant)
    wanted = work(tenant)

    (event,) = next_events(ann.browser.get(f"{LIVE}?tenant=acme&after=0&activity={wanted}"), 1)

    assert event.data["activity"] == str(wanted)


def test_anonymous_requests_get_401_without_a_redirect(database: None, tenant: Tenant) -> None:
    assert Client().get(f"{LIVE}?tenant=acme").status_code == 401


def test_the_stream_of_another_tenant_is_not_found(
    tenant: Tenant, other_tenant: Tenant, ann: Person, person: Callable[..., Person]
) -> None:
    assert ann.browser.get(f"{LIVE}?tenant={other_tenant.slug}").status_code == 404
    assert ann.browser.get(LIVE).status_code == 400
    assert ann.browser.post(LIVE).status_code in (403, 405)


@in_one_test("query", ["after=x", "after=-1", "activity=x", "after=9999999999999999999"])
def test_invalid_parameters_are_refused(query: str, tenant: Tenant, ann: Person) -> None:
    assert ann.browser.get(f"{LIVE}?tenant=acme&{query}").status_code == 400


def test_the_newest_page_displaces_the_oldest_which_is_notified(
    tenant: Tenant, ann: Person, settings: Any
) -> None:
    settings.ORCHESTRATOR_STREAMS_PER_CALLER = 2
    first, second = (ann.browser.get(f"{LIVE}?tenant=acme") for _ in range(2))
    oldest, kept = iter(first.streaming_content), iter(second.streaming_content)
    next(oldest), next(kept)

    third = ann.browser.get(f"{LIVE}?tenant=acme&after=0")

    assert third.status_code == 200
    assert b"event: displaced" in b"".join(oldest), "its last words, and then it is over"
    work(tenant)
    assert [event.event for event in next_events(third, 1)] == ["activity.created"]
    assert b"activity.created" in next(piece for piece in kept if b"event:" in piece)
    first.close(), second.close()


def test_a_page_is_refused_when_others_hold_all_streams(
    tenant: Tenant, ann: Person, person: Callable[..., Person], settings: Any
) -> None:
    settings.ORCHESTRATOR_STREAMS_PER_TENANT = 1
    first = ann.browser.get(f"{LIVE}?tenant=acme&after=0")
    next(iter(first.streaming_content))

    answer = person("bob").browser.get(f"{LIVE}?tenant=acme")

    assert (answer.status_code, answer["Retry-After"]) == (429, "5")
    first.close()
