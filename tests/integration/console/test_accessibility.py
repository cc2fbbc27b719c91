"""Every page of the console passes the accessibility rules of axe."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.contrib.auth.models import User

from activities.submission import NewActivity, submit
from console import navigation
from pipelines import submission, versions
from tenants import members, saved_views
from tenants.context import tenant_scope
from tenants.models import Tenant
from tests import pages
from tests.console_user import Person
from tests.questions import ARTICLE, Questions
from tests.scheduling import make_schedule

pytestmark = pytest.mark.ui
axe = pytest.importorskip("axe_playwright_python.sync_playwright")

#: Together they cover both colour schemes and both widths.
LOOKS = (("light", 1280), ("dark", 390))
#: The rules whose outcome depends on colours and widths.
VISUAL_RULES = ["color-contrast", "link-in-text-block", "scrollable-region-focusable"]


def violations(window: Any, *, only_visual_on_phones: bool = False) -> list[tuple[Any, ...]]:
    """Return the violations of the current page in each look."""
    found = []
    window.evaluate(axe.Axe().axe_script)
    for colours, width in LOOKS:
        window.emulate_media(color_scheme=colours, reduced_motion="reduce")
        window.set_viewport_size({"width": width, "height": 800})
        rules = {"runOnly": VISUAL_RULES} if only_visual_on_phones and width == 390 else {}
        options = {"resultTypes": ["violations"], "preload": False}  # only rules on sounds read files
        result = window.evaluate("options => axe.run(options)", options | rules)
        for fault in result["violations"]:
            nodes = [node["html"][:120] for node in fault["nodes"][:3]]
            found.append((colours, width, window.url, fault["id"], fault["help"], nodes))
    return found


@pytest.fixture
def window(person: Callable[..., Person]) -> Iterator[Any]:
    with pages.page_of(person("ann", role="admin", human_roles=["editor"]).user) as page:
        yield page


@pytest.fixture
def addresses(questions: Questions) -> list[str]:
    """Every page of the navigation, and one of what they list. The form of a new schedule is that of a change."""
    questions.engine.serve(questions.tenant)
    gate = questions.gate("# Bees\n\nThey *fly*.", name="An article")
    versions.save(questions.tenant.pk, ARTICLE, actor="test")
    run = submission.start_run(questions.tenant.pk, "article", submission.NewRun(), actor="test")
    with tenant_scope(questions.tenant.pk):
        submit([NewActivity(name="Work", agent_role="qa")], actor="test")
    questions.engine.drain()
    schedule = make_schedule(questions.tenant, "prices", params={})
    listed = [page.address for listed in navigation.PAGES.values() for page in listed]
    return [
        *listed,
        f"/inbox/{gate.pk}/",
        f"/activities/{gate.pk}/",
        f"/runs/{run.pk}/",
        "/pipelines/article/",
        "/pipelines/article/start/",
        "/pipelines/article/copy/",
        f"/schedules/{schedule.pk}/",
        f"/schedules/{schedule.pk}/change/",
        "/activities/new/",
        "/queues/qa/",
        "/agents/qa/",
        "/views/",
        "/activities/?q=status:done",
    ]


def test_every_page_is_accessible_in_each_colour_scheme_and_width(addresses: list[str], window: Any) -> None:
    """The other rules check what only phones show, which is a part of every page, on the first page."""
    saved_views.keep(
        members.principal_of(User.objects.get()), page="activities", name="Open", query="q=status%3Aopen"
    )
    found = []
    for address in addresses:
        window.goto(address, wait_until="load")
        window.wait_for_selector("body:not(.stale)")  # while it is not connected, a page is paler
        window.evaluate("document.querySelectorAll('#keep').forEach((one) => { one.open = true; })")
        # On a Monday no day of the calendar has passed.
        window.evaluate("document.querySelector('.calendar td:last-child')?.classList.add('past')")
        found += violations(window, only_visual_on_phones=address != addresses[0])

    assert found == []


def test_the_tenants_and_second_factor_pages_are_accessible(
    tenant: Tenant, other_tenant: Tenant, person: Callable[..., Person], settings: Any
) -> None:
    settings.ORCHESTRATOR_PASSKEY_ORIGIN = "https://console.example"
    bo = person("bo", tenant, other_tenant)
    found = []
    with pages.page_of(bo.user) as window:
        for path, heading in (
            ("/tenants/", "All my tenants"),
            ("/second-factor/", "Two-factor authentication"),
        ):
            window.goto(path, wait_until="load")
            assert window.inner_text("h1") == heading
            found += violations(window)

    assert found == []


def test_the_sign_in_page_is_accessible(database: None) -> None:
    with pages.browser() as chromium, pages.serve_site() as address:
        window = chromium.new_context(base_url=address).new_page()
        window.goto("/login/")
        assert violations(window) == []
