"""What people expect of a console of a task system, each done in a real browser: here what no other file does, and where the rest is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User

from agents.exceptions import PermanentAgentError
from agents.models import AgentConfig
from tenants.context import tenant_scope
from tenants.models import Tenant
from tests import pages
from tests.console_user import Person
from tests.engine import Engine
from tests.failed_work import submit_failing
from tests.integration.console.test_console_usage import spend
from tests.questions import Questions
from tests.scheduling import make_schedule

pytestmark = pytest.mark.ui

INTEGRATION = Path(__file__).parents[1]
HERE = f"console/{Path(__file__).name}"
WORK, OPERATION = "console/test_work_in_a_browser.py", "console/test_operation_in_a_browser.py"
LOOKS = "console/test_accessibility.py"
KEYS, TUTORIAL = "console/test_console_keyboard.py", "test_tutorial.py"
FIRST_PIPELINE = "test_the_tutorial_in_the_browser_leads_to_a_completed_run_and_a_schedule"

FEATURES = {
    "depth of queues, live": (HERE, "test_a_queue_is_watched_paused_and_resumed"),
    "timeline of a run": (HERE, "test_failed_work_is_inspected_retried_and_cancelled"),
    "picture of a run with live states": (
        WORK,
        "test_the_picture_of_a_run_is_live_and_links_activities",
    ),
    "retry of one": (HERE, "test_failed_work_is_inspected_retried_and_cancelled"),
    "many at once, by a filter": (WORK, "test_the_progress_of_a_bulk_job_is_live"),
    "cancel": (HERE, "test_failed_work_is_inspected_retried_and_cancelled"),
    "inbox of people": (KEYS, "test_items_are_reached_opened_and_approved_without_a_mouse"),
    "keyboard": (KEYS, "test_items_are_reached_opened_and_approved_without_a_mouse"),
    "difference between revisions": (TUTORIAL, FIRST_PIPELINE),
    "query language, and views by address": (
        WORK,
        "test_a_query_updates_the_list_and_the_address",
    ),
    "preview of the next runs": (TUTORIAL, FIRST_PIPELINE),
    "dry run of a schedule": (OPERATION, "test_a_schedule_is_previewed_and_nothing_starts"),
    "dead letters, replayed": (OPERATION, "test_many_failures_are_replayed_after_a_preview"),
    "failures by their cause": (HERE, "test_failed_work_is_inspected_retried_and_cancelled"),
    "use and cost by tenant": (HERE, "test_an_agency_compares_the_cost_of_its_tenants"),
    "trail of who did what": (HERE, "test_a_queue_is_watched_paused_and_resumed"),
    "pause of a queue, a tenant, a schedule": (HERE, "test_a_queue_is_watched_paused_and_resumed"),
    "roles of people": (HERE, "test_a_viewer_sees_no_button_and_a_link_opens_its_item"),
    "one tenant for the whole screen": (HERE, "test_an_agency_compares_the_cost_of_its_tenants"),
    "health of workers": (HERE, "test_a_queue_is_watched_paused_and_resumed"),
    "state of limits and providers": (HERE, "test_a_queue_is_watched_paused_and_resumed"),
    "dark colours": (WORK, "test_colours_follow_the_system_until_chosen"),
    "phone": (LOOKS, "test_every_page_is_accessible_and_fits_in_each_colour_scheme_and_width"),
    "links to one item": (HERE, "test_a_viewer_sees_no_button_and_a_link_opens_its_item"),
}


def test_each_feature_has_a_test_in_a_browser() -> None:
    assert len(FEATURES) == 24
    for file, name in FEATURES.values():
        assert f"def {name}(" in (INTEGRATION / file).read_text(encoding="utf-8"), (file, name)


@pytest.fixture
def window() -> Iterator[Callable[[User], Any]]:
    """`window(user)`: the page of a user who has signed in, and no page of the user before. Errors in its console fail the test."""
    with ExitStack() as opened:

        def made(user: User) -> Any:
            opened.close()
            return opened.enter_context(pages.page_of(user))

        yield made


@contextmanager
def agreeing(page: Any) -> Iterator[None]:
    """Says yes to the question that a button asks."""
    page.once("dialog", lambda dialog: dialog.accept())
    yield


def test_a_queue_is_watched_paused_and_resumed(
    engine: Engine, tenant: Tenant, person: Callable[..., Person], window: Callable[[User], Any]
) -> None:
    page = window(person("boss", role="admin").user)
    with tenant_scope(tenant.pk):
        AgentConfig.objects.create(tenant=tenant, agent_id="qa", adapter="anthropic", model="some-model")
    schedule = make_schedule(tenant, "prices")

    page.goto("/queues/qa/")
    page.locator("#figures").get_by_text("0 waiting").wait_for()
    engine.submit(tenant, "qa", count=3)
    page.locator("#figures").get_by_text("3 starting").wait_for()
    assert page.get_by_role("heading", name="Limits").is_visible()
    assert page.get_by_role("button", name="Pause all work for anthropic").is_visible()
    page.get_by_role("button", name="Pause for this tenant").click()
    page.get_by_text("Paused for this tenant: no new work starts.").wait_for()
    page.get_by_role("button", name="Resume", exact=True).click()
    page.get_by_role("button", name="Pause for this tenant").wait_for()

    page.goto("/queues/")
    page.get_by_text("Pause all work").click()
    with agreeing(page):
        page.get_by_role("button", name="Pause everything").click()
    page.get_by_text("All work of this tenant is paused").first.wait_for()
    page.goto(f"/schedules/{schedule.pk}/")
    page.get_by_role("button", name="Pause").click()
    page.get_by_role("button", name="Resume").wait_for()

    page.goto("/audit/")
    for told in ("POST /queues/{role}/pause/", "POST /queues/{role}/resume/", "boss"):
        assert told in page.inner_text("main")
    page.goto("/workers/")
    assert "seats in use" in page.inner_text("#workers")


def test_failed_work_is_inspected_retried_and_cancelled(
    engine: Engine, tenant: Tenant, ann: Person, window: Callable[[User], Any]
) -> None:
    engine.serve(tenant)
    (broken,) = submit_failing(engine, tenant)
    submit_failing(engine, tenant, count=2, error=PermanentAgentError("The shop is closed.", code="closed"))
    page = window(ann.user)

    page.goto("/dead-letters/")
    groups = page.locator("main table").first.inner_text()
    assert ("It broke." in groups, "The shop is closed." in groups) == (True, True)

    page.goto(f"/activities/{broken}/")
    with agreeing(page):
        page.get_by_role("button", name="Retry").click()
    page.locator("h1 .tag.idle").wait_for()
    engine.drain()
    pages.wait_live(page, "h1 .tag.good")
    assert page.get_by_role("heading", name="Time breakdown").is_visible()

    (going,) = engine.submit(tenant)
    page.goto(f"/activities/{going}/")
    with agreeing(page):
        page.get_by_role("button", name="Cancel").first.click()
    page.get_by_text("cancelled").first.wait_for()
    assert engine.status(tenant, going) == "cancelled"


def test_an_agency_compares_the_cost_of_its_tenants(
    engine: Engine,
    tenant: Tenant,
    other_tenant: Tenant,
    person: Callable[..., Person],
    window: Callable[[User], Any],
) -> None:
    spend(tenant, "qa", "1.25", input_tokens=100)
    spend(other_tenant, "dev", "77")
    page = window(person("agency", tenant, other_tenant).user)

    page.goto("/tenants/")
    assert all(words in page.inner_text("main") for words in ("acme", "globex", "$1.25", "$77.00"))
    page.get_by_role("link", name="globex").first.click()
    page.get_by_role("navigation", name="Pages").get_by_role("link", name="Usage").click()
    page.get_by_text("$77.00").first.wait_for()
    assert "$1.25" not in page.inner_text("main")
    page.get_by_role("navigation", name="Pages").get_by_role("link", name="Queues").click()
    assert "tenant=globex" in page.url


def test_a_viewer_sees_no_button_and_a_link_opens_its_item(
    questions: Questions, person: Callable[..., Person], window: Callable[[User], Any]
) -> None:
    gate = questions.gate(name="Bees")
    link = f"/inbox/{gate.pk}/?tenant={questions.tenant.slug}"
    looking = window(person("vic", role="viewer").user)

    looking.goto(link)
    assert "Approve: Bees" in looking.inner_text("#item h1, #item h2")
    assert not looking.get_by_role("button", name="Approve").is_visible()
    looking.goto("/queues/qa/")
    assert looking.get_by_role("button", name="Pause for this tenant").count() == 0

    deciding = window(person("rita", role="reviewer").user)
    deciding.goto(link)
    deciding.get_by_role("button", name="Approve", exact=True).click()
    deciding.get_by_text("Approved").first.wait_for()
    assert questions.get(gate.pk).status == "approved"
