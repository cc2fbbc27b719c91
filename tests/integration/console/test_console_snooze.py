"""Snoozed items: hidden from one member's list until a time, or until the item changes."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest
from django.http import HttpResponse

from activities.human_tasks import human_work
from activities.models import Activity, SnoozedItem
from tenants import members
from tenants.context import tenant_scope
from tenants.members import principal_of
from tenants.models import Membership, Tenant
from tests.browsing import visible_text
from tests.cases import in_one_test
from tests.console_user import INBOX, Person, refusal_notice, send_form, success_notice
from tests.engine import simultaneously
from tests.forms import Form, forms_of
from tests.integration.test_retention import age_work, purge
from tests.questions import Questions

SNOOZED = f"{INBOX}?aside=yes"


def snooze_item(who: Person, item: Activity, until: str = "hour", **fields: str) -> HttpResponse:
    """Open an item and press one of its snooze buttons."""
    form = forms_of(who.look(item))["put-aside"]
    return form.send(who.browser, ("aside", until), **fields)


def names(answer: HttpResponse) -> list[str]:
    return re.findall(r'<bdi class="name">(.*?)</bdi>', answer.content.decode())


def snoozes_of(tenant: Tenant) -> list[SnoozedItem]:
    with tenant_scope(tenant.pk):
        return list(SnoozedItem.objects.for_tenant(tenant).order_by("created_at"))


def set_until(tenant: Tenant, moment: datetime) -> None:
    with tenant_scope(tenant.pk):
        SnoozedItem.objects.for_tenant(tenant).update(until=moment)


def test_a_snoozed_item_leaves_only_the_members_own_list(
    questions: Questions, ann: Person, person: Callable[..., Person]
) -> None:
    one, two = questions.task("One"), questions.task("Two")
    bob = person("bob")

    answer = snooze_item(ann, one)

    assert f"{INBOX}{two.pk}/" in answer["Location"], "the next item"
    assert re.fullmatch(r"Snoozed until \d+ \w+, \d\d:\d\d UTC: One", success_notice(answer, ann))
    assert names(ann.get()) == ["Two"]
    assert "Inbox 1" in visible_text(ann.get())
    assert "All 1 Tasks 1 Snoozed 1" in visible_text(ann.get())
    assert names(bob.get()) == ["One", "Two"]
    assert "Snoozed 1" not in visible_text(bob.get())
    assert questions.get(one.pk).version == one.version, "the item itself does not change"


def test_the_list_of_snoozed_items_shows_times_and_unsnoozes(questions: Questions, ann: Person) -> None:
    one = questions.task("One")
    questions.task("Two")
    assert names(ann.get(SNOOZED)) == []
    snooze_item(ann, one)
    with tenant_scope(questions.tenant.pk):
        until = SnoozedItem.objects.get().until

    page = ann.get(SNOOZED)
    assert names(page) == ["One"]
    assert f"snoozed until {until:%-d %b, %H:%M} UTC" in visible_text(page)
    answer = forms_of(page)["back"].send(ann.browser, ("item", str(one.pk)))

    assert success_notice(answer, ann) == "Back in your list: One"
    assert "aside=yes" not in answer["Location"], "no other item is snoozed"
    assert names(ann.get()) == ["One", "Two"]
    assert snoozes_of(questions.tenant) == []


def test_unsnoozing_on_the_page_of_an_item_is_idempotent(questions: Questions, ann: Person) -> None:
    task = questions.task()
    snooze_item(ann, task)

    form = forms_of(ann.look(task, "?aside=yes"))["bring-back"]
    assert "You have snoozed this until" in visible_text(ann.look(task))
    for _ in range(2):
        answer = form.send(ann.browser, ("item", str(task.pk)))
        assert answer["Location"].startswith(f"{INBOX}{task.pk}/?tenant=acme#")

    assert "You have snoozed this" not in visible_text(ann.look(task))
    assert names(ann.get()) == [task.name]


def test_a_snoozed_item_returns_at_its_time(questions: Questions, ann: Person) -> None:
    task = questions.task()
    snooze_item(ann, task, "own", own=f"{datetime.now(UTC) + timedelta(days=3):%Y-%m-%dT%H:%M}")
    assert names(ann.get()) == []

    set_until(questions.tenant, datetime.now(UTC) - timedelta(seconds=1))

    assert names(ann.get()) == [task.name]
    assert names(ann.get(SNOOZED)) == []
    assert "Snoozed 1" not in visible_text(ann.get())


def test_a_snoozed_item_returns_when_it_changes(questions: Questions, ann: Person) -> None:
    task = questions.task()
    snooze_item(ann, task)

    human_work.take_up(questions.tenant.pk, task.pk, actor="user:bob")

    assert names(ann.get()) == [task.name]
    snooze_item(ann, task)
    assert names(ann.get()) == [], "it can be snoozed again"
    assert len(snoozes_of(questions.tenant)) == 1


def test_a_snoozed_item_returns_when_due_and_can_be_snoozed_longer(questions: Questions, ann: Person) -> None:
    due = datetime.now(UTC) + timedelta(minutes=20)
    task = questions.task(due_at=due)

    assert "when it is due" in success_notice(snooze_item(ann, task), ann)
    assert [row.until for row in snoozes_of(questions.tenant)] == [due]

    with tenant_scope(questions.tenant.pk):
        Activity.objects.filter(pk=task.pk).update(due_at=datetime.now(UTC) - timedelta(minutes=1))
    set_until(questions.tenant, datetime.now(UTC) - timedelta(minutes=1))
    assert "overdue by 1 min" in visible_text(ann.get())
    snooze_item(ann, task)
    assert names(ann.get()) == []


def test_a_snoozed_item_returns_before_it_expires(questions: Questions, ann: Person) -> None:
    expiry = datetime.now(UTC) + timedelta(minutes=80)
    task = questions.task(expires_at=expiry)

    assert "an hour before it expires" in success_notice(snooze_item(ann, task), ann)
    assert [row.until for row in snoozes_of(questions.tenant)] == [expiry - timedelta(hours=1)]

    soon = questions.task(expires_at=datetime.now(UTC) + timedelta(minutes=50))
    assert "This item expires within an hour" in snooze_item(ann, soon).content.decode()
    assert len(snoozes_of(questions.tenant)) == 1


def test_snooze_times_use_the_tenants_time_zone(questions: Questions, ann: Person) -> None:
    with tenant_scope(questions.tenant.pk):
        Tenant.objects.filter(pk=questions.tenant.pk).update(timezone="Asia/Tokyo")
    task = questions.task()
    day = (datetime.now(UTC) + timedelta(days=2)).date()

    message = success_notice(snooze_item(ann, task, "own", own=f"{day}T09:00"), ann)

    assert message.startswith(f"Snoozed until {day:%-d %b}, 09:00 Asia/Tokyo")
    assert [row.until for row in snoozes_of(questions.tenant)] == [
        datetime(day.year, day.month, day.day, tzinfo=UTC)
    ]
    assert f"snoozed until {day:%-d %b}, 09:00 Asia/Tokyo" in visible_text(ann.get(SNOOZED))


def test_viewers_can_snooze(questions: Questions, person: Callable[..., Person]) -> None:
    vera, task = person("vera", role="viewer"), questions.task()

    success_notice(snooze_item(vera, task), vera)

    assert names(vera.get()) == []


def test_superusers_cannot_snooze(questions: Questions, ann: Person, root: Person) -> None:
    task = questions.task()
    form = forms_of(ann.look(task))["put-aside"]

    assert "put-aside" not in forms_of(root.look(task, "?tenant=acme"))
    assert "Only members" in refusal_notice(send_form(root, form, aside="hour"), 403)
    assert snoozes_of(questions.tenant) == []


@pytest.fixture
def task(questions: Questions) -> Activity:
    return questions.task()


@in_one_test(
    ("fields", "status", "reason"),
    [
        ({"aside": "own", "own": "2020-01-01T09:00"}, 400, "That time has passed."),
        ({"aside": "own", "own": "9000-01-01T09:00"}, 400, "An item can be snoozed for at most 90 days."),
        ({"aside": "own", "own": "tea"}, 400, "Enter a date and a time"),
        ({"aside": "nonsense"}, 400, "This choice is not valid."),
        ({"aside": "hour", "version": "x"}, 400, "This page is outdated."),
        ({"aside": "hour", "version": "99"}, 409, "Changed by planner (token)"),
    ],
    ids=["past", "too-far", "no-time", "no-choice", "no-version", "other-version"],
)
def test_an_invalid_snooze_is_refused_with_the_typed_time(
    fields: dict[str, str], status: int, reason: str, task: Activity, ann: Person
) -> None:
    answer = send_form(ann, forms_of(ann.look(task))["put-aside"], **fields)

    assert refusal_notice(answer, status).startswith(reason)
    assert forms_of(answer)["put-aside"].fields["own"] == [fields.get("own", "")]
    assert names(ann.get()) == [task.name]


def test_a_closed_item_cannot_be_snoozed(questions: Questions, ann: Person) -> None:
    task = questions.task()
    form = forms_of(ann.look(task))["put-aside"]
    human_work.complete(questions.tenant.pk, task.pk, actor="user:bob")

    assert refusal_notice(form.send(ann.browser, ("aside", "hour")), 409).startswith("Completed by bob")
    again = send_form(ann, form, aside="hour", version=str(questions.get(task.pk).version))
    assert refusal_notice(again, 409) == "This item is closed already."
    assert snoozes_of(questions.tenant) == []


def test_items_of_another_tenant_and_unknown_items_are_not_found(
    questions: Questions, ann: Person, other_tenant: Tenant, person: Callable[..., Person]
) -> None:
    task, eve = questions.task(), person("eve", other_tenant)
    form = forms_of(ann.look(task))["put-aside"]
    form.action = f"{INBOX}{task.pk}/"
    back = Form(f"{INBOX}back/", "post")

    assert send_form(eve, form, aside="hour").status_code == 404
    for item in (task.pk, uuid4(), "x"):
        assert send_form(eve, back, item=str(item)).status_code == 404
    assert ann.browser.get(f"{INBOX}?aside=no").status_code == 404
    assert ann.browser.get(f"{INBOX}back/").status_code == 405


def test_concurrent_snoozes_leave_one_snooze(questions: Questions, ann: Person) -> None:
    from console.inbox.snooze import snooze as put

    task, who = questions.task(), principal_of(ann.user)
    until = datetime.now(UTC) + timedelta(hours=2)

    simultaneously(*(lambda: put(who, task.pk, version=task.version, until=until) for _ in range(4)))

    assert [row.until for row in snoozes_of(questions.tenant)] == [until]


def test_snoozes_end_with_the_membership_and_with_the_item(
    questions: Questions, ann: Person, person: Callable[..., Person]
) -> None:
    bob, boss, task = person("bob"), person("boss", role="admin"), questions.task()
    snooze_item(ann, task), snooze_item(bob, task)
    with tenant_scope(questions.tenant.pk):
        hers = Membership.objects.get(user=ann.user)

    members.end_membership(principal_of(boss.user), hers.pk)
    assert len(snoozes_of(questions.tenant)) == 1
    human_work.complete(questions.tenant.pk, task.pk, actor="user:bob")
    age_work([task.pk])
    assert purge(questions.tenant, "activities") == 1
    assert snoozes_of(questions.tenant) == []


def test_old_snoozes_are_deleted(questions: Questions, ann: Person) -> None:
    one, two = questions.task("One"), questions.task("Two")
    snooze_item(ann, one)
    set_until(questions.tenant, datetime.now(UTC) - timedelta(days=1))

    snooze_item(ann, two)

    assert [row.activity_id for row in snoozes_of(questions.tenant)] == [two.pk]


def test_snoozed_items_need_no_more_queries(
    questions: Questions, ann: Person, queries_of: Callable[[Person, str], list[str]]
) -> None:
    items = [questions.task(f"Task {number}") for number in range(4)]
    before = {address: len(queries_of(ann, address)) for address in (INBOX, f"{INBOX}{items[3].pk}/")}

    for item in items:
        snooze_item(ann, item)

    after: dict[str, Any] = {address: len(queries_of(ann, address)) for address in before}
    assert all(after[address] <= count for address, count in before.items()), (before, after)
    assert before[INBOX] <= 12
    assert len(queries_of(ann, SNOOZED)) <= before[INBOX]
