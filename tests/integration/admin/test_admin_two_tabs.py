"""Two people who edit the same row in the admin: the second is refused, keeps the input, and overwrites nothing unseen."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
from django.db.models import F
from django.test import Client

from activities.models import NotificationChannel
from activities.notifications import backends
from agents.models import Agent, Skill
from pipelines import versions
from pipelines.models import ActivityTemplate, Deliverable
from tenants.admin.bases import CHANGED, SeenForm
from tenants.context import tenant_scope
from tenants.models import Channel, Plan, Tenant
from tests.browsing import BRIEF, page_url, visible_text
from tests.engine import eventually, simultaneously, somebody_waits_for_a_lock
from tests.forms import Form, forms_of


def _notification_channel(tenant: Tenant) -> NotificationChannel:
    channel = NotificationChannel(tenant=tenant, kind="email", name="before")
    backends.put_target(channel, "anna@example.org")
    return channel


def _deliverable(tenant: Tenant) -> Deliverable:
    versions.save(tenant.pk, BRIEF, actor="test")
    return Deliverable(tenant=tenant, key="blog", name="before", pipelines=["brief"])


ROWS: dict[str, Callable[[Tenant], Any]] = {
    "skill": lambda tenant: Skill(tenant=tenant, key="tone", name="before", content="Plain."),
    "template": lambda tenant: ActivityTemplate(tenant=tenant, key="brief", name="before"),
    "channel": lambda tenant: Channel(tenant=tenant, kind="mail", name="before"),
    "notification channel": _notification_channel,
    "deliverable": _deliverable,
    "plan": lambda tenant: Plan(key="small", name="before"),
    "agent": lambda tenant: Agent(role="two-tabs", name="before"),
}


@pytest.fixture
def row(request: pytest.FixtureRequest, tenant: Tenant) -> Iterator[Any]:
    with tenant_scope(tenant.pk):
        row = ROWS[request.param](tenant)
    row.save(using="system", force_insert=True)
    yield row
    Agent.objects.filter(role="two-tabs").delete()  # the registry outlives a test


def form_of(browser: Client, row: Any) -> Form:
    return next(form for form in forms_of(browser.get(page_url(row))).values() if "name" in form.fields)


@pytest.mark.parametrize("row", ROWS, indirect=True)
def test_the_second_of_two_edits_is_refused_until_the_form_is_opened_again(root: Client, row: Any) -> None:
    first, second = form_of(root, row), form_of(root, row)
    address = page_url(row)
    first.action = second.action = address

    assert first.send(root, ("_save", ""), name="first").status_code == 302
    refused = second.send(root, ("_save", ""), name="second")

    assert refused.status_code == 200
    assert CHANGED in visible_text(refused)
    assert 'value="second"' in refused.content.decode()
    opened_again = form_of(root, row)
    assert opened_again.fields["name"] == ["first"]
    opened_again.action = address
    assert opened_again.send(root, ("_save", ""), name="third").status_code == 302


@pytest.mark.parametrize("row", ["skill", "notification channel", "deliverable", "agent"], indirect=True)
def test_of_two_edits_at_the_same_moment_one_is_refused(
    root: Client, row: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    address, compare, compared = page_url(row), SeenForm.clean, []

    def compare_and_let_the_other_catch_up(form: SeenForm) -> Any:
        values = compare(form)
        compared.append(form)
        eventually(lambda: len(compared) == 2 or somebody_waits_for_a_lock())
        return values

    def save(name: str) -> int:
        browser = Client()
        browser.cookies = root.cookies
        edit = edits[name]
        edit.action = address
        return edit.send(browser, ("_save", ""), name=name).status_code

    edits = {name: form_of(root, row) for name in ("first", "second")}
    monkeypatch.setattr(SeenForm, "clean", compare_and_let_the_other_catch_up)

    answers = simultaneously(partial(save, "first"), partial(save, "second"))

    assert sorted(answers) == [200, 302]
    saved = "first" if answers[0] == 302 else "second"
    assert form_of(root, row).fields["name"] == [saved]


@pytest.mark.parametrize("row", ["agent"], indirect=True)
def test_credentials_that_were_stored_meanwhile_are_a_change_although_no_form_shows_them(
    root: Client, row: Any
) -> None:
    form = form_of(root, row)
    form.action = page_url(row)
    Agent.objects.filter(pk=row.pk).update(auth_sealed="main:sealed", revision=F("revision") + 1)

    assert CHANGED in visible_text(form.send(root, ("_save", ""), name="second"))
