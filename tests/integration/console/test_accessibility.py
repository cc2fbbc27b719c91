"""Every page of the console passes the accessibility rules of axe, and is not wider than the screen."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.contrib.auth.models import User

from activities.models import Activity
from activities.submission import NewActivity, submit
from agents.contracts import Completed, Output
from console import navigation
from pipelines import submission, versions
from tenants import members, saved_views
from tenants.context import system_scope, tenant_scope
from tenants.models import Tenant
from tests import pages
from tests.console_user import Person
from tests.questions import ARTICLE, Questions
from tests.scheduling import make_schedule

pytestmark = pytest.mark.ui
axe = pytest.importorskip("axe_playwright_python.sync_playwright")

PHONE = 360
#: Together they cover both colour schemes and both widths.
LOOKS = (("light", 1200), ("dark", PHONE))
#: The rules whose outcome depends on colours and widths.
VISUAL_RULES = ["color-contrast", "link-in-text-block", "scrollable-region-focusable"]


#: Rows are alike, so these many of a list are checked. They take most of the time, and for a list of many rows it is a second.
SHORTEN = """document.querySelectorAll("tbody tr:nth-child(n+5), select option:nth-child(n+5)").forEach((one) => one.remove())"""
MENU = ".places"
NO_EVENTS = "window.EventSource = class { addEventListener() {} close() {} };"
#: The violations, and texts in the very colour of their background, which axe takes for hidden on purpose.
FAULTS = """async ([seen, options]) => {
  const {violations, incomplete} = await axe.run({include: [document], ...seen}, options);
  const isInvisible = (node) => node.any.some((check) => check.data?.messageKey === "equalRatio");
  const invisible = incomplete.map((fault) => ({...fault, nodes: fault.nodes.filter(isInvisible)}));
  return [...violations, ...invisible.filter((fault) => fault.nodes.length)];
}"""


def show(window: Any, colours: str, width: int) -> list[tuple[Any, ...]]:
    """Show the current page in a look, and return it with its width if it does not fit."""
    window.emulate_media(color_scheme=colours, reduced_motion="reduce")
    window.set_viewport_size({"width": width, "height": 800})
    wide = window.evaluate("document.documentElement.scrollWidth")
    return [(colours, width, window.url, "too wide", wide)] if wide > width else []


def violations(window: Any, *, whole: bool = True) -> list[tuple[Any, ...]]:
    """Return the violations of the current page in each look.

    Without `whole`, leave out the menu, and what only phones show for the rules other than the visual ones.
    """
    found = []
    for colours, width in LOOKS:
        found += show(window, colours, width)
        window.evaluate(SHORTEN)
        rules = {"runOnly": VISUAL_RULES} if not whole and width == PHONE else {}
        # Only rules on sounds would read the files that `preload` loads.
        options = {"resultTypes": ["violations", "incomplete"], "preload": False}
        seen = {} if whole else {"exclude": [MENU]}
        for fault in window.evaluate(FAULTS, [seen, options | rules]):
            nodes = [node["html"][:120] for node in fault["nodes"][:3]]
            found.append((colours, width, window.url, fault["id"], fault["help"], nodes))
    return found


@contextmanager
def page_with_axe(user: User, *tolerated: str) -> Iterator[Any]:
    """Yield a page of the user whose documents have axe, and no live updates, which would load each part once more."""
    with pages.page_of(user, *tolerated) as first:
        page = first.context.new_page()
        page.add_init_script(f"{NO_EVENTS}\n{axe.Axe().axe_script}")
        yield page


@pytest.fixture
def window(person: Callable[..., Person]) -> Iterator[Any]:
    with page_with_axe(person("ann", role="admin", human_roles=["editor"]).user, pages.REFUSED) as page:
        yield page


@pytest.fixture
def addresses(questions: Questions) -> list[str]:
    """Every page of the navigation, and one of what they list, which has long words. The form of a new schedule is that of a change."""
    code = f"```\n{'y' * 300}\n```"
    gate = questions.gate(f"# Bees\n\nThey *fly*.\n\n{'x' * 300}\n\n{code}", name="An article")
    approval, escalation = questions.approval("z" * 200), questions.escalation("w" * 300)
    questions.engine.agent.behaviour = lambda request: Completed(Output(content="Bees."))
    versions.save(questions.tenant.pk, ARTICLE, actor="test")
    run = submission.start_run(questions.tenant.pk, "article", submission.NewRun(), actor="test")
    with tenant_scope(questions.tenant.pk):
        submit(
            [NewActivity(name=name, agent_role="qa") for name in ("x" * 190, "Several words")], actor="test"
        )
    questions.engine.drain()
    questions.engine.submit(questions.tenant, "qa", count=2)
    schedule = make_schedule(
        questions.tenant, "a-schedule-with-a-rather-long-name-that-nobody-breaks", params={}
    )
    listed = [page.address for listed in navigation.PAGES.values() for page in listed]
    return [
        *listed,
        *(f"/inbox/{item.pk}/" for item in (gate, approval, escalation)),
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


@pytest.fixture
def alike(addresses: list[str]) -> list[str]:
    """Pages of the same elements as `addresses`, for which only their width is checked."""
    with system_scope():
        done = Activity.objects.exclude(output_ref=None).first()
    return [
        "/activities/?q=roel:" + "y" * 200, f"/activities/{done.pk}/texts/", "/activities/bulk/?q=role:qa", "/schedules/try/",
        "/settings/tokens/", "/settings/budgets/", "/settings/webhooks/",
    ]  # fmt: skip


def test_every_page_is_accessible_and_fits_in_each_colour_scheme_and_width(
    addresses: list[str], alike: list[str], window: Any
) -> None:
    """The menu, and what only phones show, is a part of every page. It is checked on the first."""
    saved_views.keep(
        members.principal_of(User.objects.get()), page="activities", name="Open", query="q=status%3Aopen"
    )
    found = []
    for address in addresses:
        window.goto(address, wait_until="load")
        window.evaluate("document.querySelectorAll('#keep').forEach((one) => { one.open = true; })")
        # On a Monday no day of the calendar has passed.
        window.evaluate("document.querySelector('.calendar td:last-child')?.classList.add('past')")
        found += violations(window, whole=address == addresses[0])
    for address in alike:
        window.goto(address)
        found += [wide for look in LOOKS for wide in show(window, *look)]

    assert found == []


def test_the_tenants_second_factor_and_sign_in_pages_are_accessible(
    tenant: Tenant, other_tenant: Tenant, person: Callable[..., Person], settings: Any
) -> None:
    settings.ORCHESTRATOR_PASSKEY_ORIGIN = "https://console.example"
    bo = person("bo", tenant, other_tenant)
    found = []
    with page_with_axe(bo.user) as window:
        for path, heading in (
            ("/tenants/", "All my tenants"),
            ("/second-factor/", "Two-factor authentication"),
        ):
            window.goto(path, wait_until="load")
            assert window.inner_text("h1") == heading
            found += violations(window)
        window.context.clear_cookies()
        window.goto("/login/")
        assert window.is_visible("[name=password]")
        found += violations(window)

    assert found == []
