"""The stream that pages listen to: for who signed in, for their tenant, from where they were."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.test import Client

from activities.submission import NewActivity, submit
from tenants.context import tenant_scope
from tenants.events import log
from tenants.models import Tenant
from tests.console_user import Person
from tests.engine import Engine
from tests.pages import end_streams
from tests.streaming import read

LIVE = "/live/"


@pytest.fixture(autouse=True)
def _nothing_goes_on(engine: Engine) -> Iterator[None]:
    yield
    end_streams()


def work(tenant: Tenant, name: str = "Bees") -> Any:
    with tenant_scope(tenant.pk):
        return submit([NewActivity(name=name, agent_role="strategy-writer")], actor="token:planner")[0].id


def told(answer: Any, count: int) -> list[Any]:
    """The next so many events of a stream in this process."""
    found, text = [], b""
    for piece in answer.streaming_content:
        text += piece
        while b"\n\n" in text:
            block, _, text = text.partition(b"\n\n")
            event = read(block)
            if event.data is not None:
                found.append(event)
        if len(found) >= count:
            break
    answer.close()
    return found


def test_it_goes_on_behind_what_was_seen_last(tenant: Tenant, ann: Person) -> None:
    work(tenant)
    with tenant_scope(tenant.pk):
        log.number(tenant.pk)
        _, last = log.position_of_log(tenant.pk)
    second = work(tenant, "Wasps")

    by_header = ann.browser.get(f"{LIVE}?tenant=acme", headers={"Last-Event-ID": str(last)})
    by_address = ann.browser.get(f"{LIVE}?tenant=acme&after={last}")

    for answer in (by_header, by_address):
        assert (answer.status_code, answer["Content-Type"]) == (200, "text/event-stream")
        (event,) = told(answer, 1)
        assert (event.id, event.event, event.data["activity"]) == (last + 1, "activity.created", str(second))


def test_it_tells_of_one_activity_alone_if_asked(tenant: Tenant, ann: Person) -> None:
    work(tenant), work(tenant)
    wanted = work(tenant)

    (event,) = told(ann.browser.get(f"{LIVE}?tenant=acme&after=0&activity={wanted}"), 1)

    assert event.data["activity"] == str(wanted)


def test_strangers_are_told_so_without_a_way_to_the_login_page(database: None, tenant: Tenant) -> None:
    assert Client().get(f"{LIVE}?tenant=acme").status_code == 401


def test_nobody_follows_another_tenant(
    tenant: Tenant, other_tenant: Tenant, ann: Person, person: Callable[..., Person]
) -> None:
    assert ann.browser.get(f"{LIVE}?tenant={other_tenant.slug}").status_code == 404
    assert ann.browser.get(LIVE).status_code == 400
    assert ann.browser.post(LIVE).status_code in (403, 405)


@pytest.mark.parametrize("query", ["after=x", "after=-1", "activity=x", "after=9999999999999999999"])
def test_what_is_no_id_is_refused(query: str, tenant: Tenant, ann: Person) -> None:
    assert ann.browser.get(f"{LIVE}?tenant=acme&{query}").status_code == 400


def test_the_newest_page_takes_the_place_of_the_oldest_which_is_told_so(
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
    assert [event.event for event in told(third, 1)] == ["activity.created"]
    assert b"activity.created" in next(piece for piece in kept if b"event:" in piece)
    first.close(), second.close()


def test_a_page_is_refused_only_where_others_have_all_the_streams(
    tenant: Tenant, ann: Person, person: Callable[..., Person], settings: Any
) -> None:
    settings.ORCHESTRATOR_STREAMS_PER_TENANT = 1
    first = ann.browser.get(f"{LIVE}?tenant=acme&after=0")
    next(iter(first.streaming_content))

    answer = person("bob").browser.get(f"{LIVE}?tenant=acme")

    assert (answer.status_code, answer["Retry-After"]) == (429, "5")
    first.close()
