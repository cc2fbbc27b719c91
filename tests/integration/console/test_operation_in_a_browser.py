"""The operation pages in a real browser: replays of many failures, previews of schedules."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tenants import tokens
from tenants.context import tenant_scope
from tenants.models import Tenant
from tests import pages
from tests.console_user import Person
from tests.engine import Engine
from tests.failed_work import create_dead_letters, letters_of
from tests.scheduling import executions, make_schedule, tickers

pytestmark = pytest.mark.ui


@pytest.fixture
def screen(boss: Person) -> Iterator[Any]:
    """A page for which `boss` has signed in. Errors in its console fail the test."""
    with pages.page_of(boss.user) as page:
        yield page


def test_many_failures_are_replayed_after_a_preview(engine: Engine, tenant: Tenant, screen: Any) -> None:
    ids = create_dead_letters(tenant, 120)
    screen.goto("/dead-letters/")

    screen.get_by_role("link", name="broken").click()
    screen.get_by_label("Per second").fill("60")
    screen.get_by_role("button", name="Preview the retry").click()
    assert "120 would be retried" in screen.inner_text("#confirm")
    assert "starts after 1 s" in screen.inner_text("#confirm")
    screen.get_by_role("button", name="Retry 120").click()

    screen.get_by_text("Retried: 120").wait_for()
    assert {letter.state for letter in letters_of(tenant, *ids)} == {"replayed"}


def test_a_schedule_is_previewed_and_nothing_starts(engine: Engine, tenant: Tenant, screen: Any) -> None:
    tickers(tenant, 12)
    schedule = make_schedule(tenant, "prices", params={"ticker": "db:ticker:all:id?enabled=true"})
    screen.goto(f"/schedules/{schedule.pk}/")

    screen.get_by_role("button", name="Dry run").click()
    assert "12\njobs each time" in screen.inner_text("#forecast").replace(" jobs", "\njobs")
    screen.get_by_role("link", name="Test other times").click()
    screen.get_by_label("When").select_option("cron")
    screen.get_by_label("Cron", exact=True).fill("0 9 * * 1-5")
    screen.get_by_role("button", name="Preview").click()

    assert "Monday through Friday" in screen.inner_text("#forecast")
    assert screen.get_by_label("Cron", exact=True).input_value() == "0 9 * * 1-5", "what was typed is kept"
    assert executions(tenant) == []


def test_everything_is_resumed_at_the_top_of_the_page(tenant: Tenant, screen: Any) -> None:
    screen.goto("/queues/")
    screen.get_by_text("Pause all work").click()
    screen.once("dialog", lambda dialog: dialog.accept())
    screen.get_by_role("button", name="Pause everything").click()

    screen.get_by_text("All work of this tenant is paused").wait_for()
    button = screen.get_by_role("button", name="Resume everything")
    assert button.bounding_box()["y"] < screen.locator("table").bounding_box()["y"]
    button.click()

    screen.get_by_text("Resumed: all work").wait_for()


def test_a_token_is_revoked_after_a_confirmation_that_can_be_declined(tenant: Tenant, screen: Any) -> None:
    token, _ = tokens.create(tenant, "viewer", "program")
    screen.goto("/settings/tokens/")
    assert not screen.get_by_role("checkbox").is_visible()
    row = screen.get_by_role("row", name="program")

    screen.once("dialog", lambda dialog: dialog.dismiss())
    row.get_by_role("button", name="Revoke").click()
    assert row.get_by_text("active").is_visible()
    screen.once("dialog", lambda dialog: dialog.accept())
    row.get_by_role("button", name="Revoke").click()

    row.get_by_text("revoked").wait_for()
    with tenant_scope(tenant.pk):
        token.refresh_from_db()
    assert token.revoked_at
