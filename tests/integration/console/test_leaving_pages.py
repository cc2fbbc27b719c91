"""Pages that are left release their stream, so the visible pages stay live."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from activities import relay
from activities.submission import NewActivity, submit
from tenants import keys, redis
from tenants.context import tenant_scope
from tenants.models import Tenant
from tests import pages
from tests.console_user import Person
from tests.engine import eventually
from tests.questions import Questions

pytestmark = pytest.mark.ui

LIVE = "document.querySelector('#connection').hidden && !document.body.classList.contains('stale')"


@pytest.fixture
def window(questions: Questions, ann: Person) -> Iterator[Any]:
    """A browser in which `ann` has signed in, without a page of the site."""
    with pages.page_of(ann.user) as page:
        yield page.context


def work(tenant: Tenant, name: str) -> None:
    with tenant_scope(tenant.pk):
        submit([NewActivity(name=name, agent_role="qa")], actor="token:planner")
    relay.flush()


def seats_taken(tenant: Tenant) -> int:
    return int(redis.client().zcard(keys.seats_of_tenant(tenant.pk)))


def test_the_last_of_seven_quickly_left_pages_is_live(window: Any, tenant: Tenant, settings: Any) -> None:
    settings.ORCHESTRATOR_STREAMS_PER_CALLER = 3
    screen = window.new_page()
    refused: list[str] = []
    screen.on("response", lambda answer: refused.append(answer.url) if answer.status == 429 else None)
    listening = "() => navigator.locks.query().then((all) => all.held.length === 1)"

    for _ in range(7):
        screen.goto("/queues/", wait_until="domcontentloaded")
        screen.wait_for_function(listening)  # it has requested its stream
    screen.goto("/activities/")
    work(tenant, "Wasps")
    pages.wait_live(screen, "text=Wasps")

    assert screen.evaluate(LIVE)
    assert refused == []
    eventually(lambda: seats_taken(tenant) == 1)


def test_more_windows_than_connections_of_a_browser_are_live_with_one_stream(
    window: Any, tenant: Tenant
) -> None:
    screens = [window.new_page() for _ in range(7)]  # a browser opens six connections to a host
    for screen in screens:
        screen.goto("/activities/")
    eventually(lambda: seats_taken(tenant) == 1)

    work(tenant, "Wasps")
    for screen in screens:
        pages.wait_live(screen, "text=Wasps")
    screens[0].close()  # the one that had the stream
    work(tenant, "Hornets")
    for screen in screens[1:]:
        pages.wait_live(screen, "text=Hornets")

    assert all(screen.evaluate(LIVE) for screen in screens[1:])


def test_a_displaced_page_says_so_and_is_live_again_on_focus(
    window: Any, tenant: Tenant, ann: Person, settings: Any
) -> None:
    settings.ORCHESTRATOR_STREAMS_PER_CALLER = 1
    screen = window.new_page()
    with screen.expect_response(lambda answer: "/live/" in answer.url):
        screen.goto("/activities/")
    elsewhere = ann.browser.get("/live/?tenant=acme")
    next(iter(elsewhere.streaming_content))
    screen.wait_for_selector("text=You have too many pages open for live updates")
    assert not screen.evaluate("document.body.classList.contains('stale')"), "it is fetched all the same"

    screen.evaluate("window.dispatchEvent(new Event('focus'))")
    screen.wait_for_selector("#connection", state="hidden")
    work(tenant, "Wasps")

    pages.wait_live(screen, "text=Wasps")
    elsewhere.close()


def test_a_page_restored_from_the_history_is_live_again(window: Any, tenant: Tenant) -> None:
    screen = window.new_page()
    screen.goto("/activities/")
    screen.goto("/runs/")
    screen.go_back()
    screen.wait_for_selector("text=There are no activities yet.")

    work(tenant, "Wasps")

    pages.wait_live(screen, "text=Wasps")
