"""Items that people put aside: out of their own list until a time, unless something about them changes before."""

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
from tests.browsing import words
from tests.console_user import INBOX, Person, done, refused, sent_by
from tests.engine import at_once
from tests.forms import Form, forms_of
from tests.integration.test_retention import age_work, purge
from tests.questions import Questions

ASIDE = f"{INBOX}?aside=yes"


def put_aside(who: Person, item: Activity, until: str = "hour", **fields: str) -> HttpResponse:
    """Open an item, and press one of the buttons that put it aside."""
    form = forms_of(who.look(item))["put-aside"]
    return form.send(who.browser, ("aside", until), **fields)


def names(answer: HttpResponse) -> list[str]:
    return re.findall(r'<bdi class="name">(.*?)</bdi>', answer.content.decode())


def kept(tenant: Tenant) -> list[SnoozedItem]:
    with tenant_scope(tenant.pk):
        return list(SnoozedItem.objects.for_tenant(tenant).order_by("created_at"))


def set_until(tenant: Tenant, moment: datetime) -> None:
    with tenant_scope(tenant.pk):
        SnoozedItem.objects.for_tenant(tenant).update(until=moment)


def test_what_one_puts_aside_leaves_ones_own_list_and_counts_alone(
    asked: Questions, ann: Person, person: Callable[..., Person]
) -> None:
    one, two = asked.task("One"), asked.task("Two")
    bob = person("bob")

    answer = put_aside(ann, one)

    assert f"{INBOX}{two.pk}/" in answer["Location"], "on to the one that follows"
    assert re.fullmatch(r"Snoozed until \d+ \w+, \d\d:\d\d UTC: One", done(answer, ann))
    assert names(ann.get()) == ["Two"]
    assert "Inbox 1" in words(ann.get())
    assert "All 1 Tasks 1 Snoozed 1" in words(ann.get())
    assert names(bob.get()) == ["One", "Two"]
    assert "Snoozed 1" not in words(bob.get())
    assert asked.get(one.pk).version == one.version, "to the item itself nothing happens"


def test_the_list_of_what_is_put_aside_says_until_when_and_brings_it_back(
    asked: Questions, ann: Person
) -> None:
    one = asked.task("One")
    asked.task("Two")
    assert names(ann.get(ASIDE)) == []
    put_aside(ann, one)
    with tenant_scope(asked.tenant.pk):
        until = SnoozedItem.objects.get().until

    page = ann.get(ASIDE)
    assert names(page) == ["One"]
    assert f"snoozed until {until:%-d %b, %H:%M} UTC" in words(page)
    answer = forms_of(page)["back"].send(ann.browser, ("item", str(one.pk)))

    assert done(answer, ann) == "Back in your list: One"
    assert "aside=yes" not in answer["Location"], "nothing else is put aside"
    assert names(ann.get()) == ["One", "Two"]
    assert kept(asked.tenant) == []


def test_the_page_of_an_item_that_is_aside_says_so_and_brings_it_back_as_often_as_it_is_sent(
    asked: Questions, ann: Person
) -> None:
    task = asked.task()
    put_aside(ann, task)

    form = forms_of(ann.look(task, "?aside=yes"))["bring-back"]
    assert "You have snoozed this until" in words(ann.look(task))
    for _ in range(2):
        answer = form.send(ann.browser, ("item", str(task.pk)))
        assert answer["Location"].startswith(f"{INBOX}{task.pk}/?tenant=acme#")

    assert "You have snoozed this" not in words(ann.look(task))
    assert names(ann.get()) == [task.name]


def test_it_comes_back_at_its_time_by_itself(asked: Questions, ann: Person) -> None:
    task = asked.task()
    put_aside(ann, task, "own", own=f"{datetime.now(UTC) + timedelta(days=3):%Y-%m-%dT%H:%M}")
    assert names(ann.get()) == []

    set_until(asked.tenant, datetime.now(UTC) - timedelta(seconds=1))

    assert names(ann.get()) == [task.name]
    assert names(ann.get(ASIDE)) == []
    assert "Snoozed 1" not in words(ann.get())


def test_it_comes_back_as_soon_as_it_changes(asked: Questions, ann: Person) -> None:
    task = asked.task()
    put_aside(ann, task)

    human_work.take_up(asked.tenant.pk, task.pk, actor="user:bob")

    assert names(ann.get()) == [task.name]
    put_aside(ann, task)
    assert names(ann.get()) == [], "as it is now it can be put aside again"
    assert len(kept(asked.tenant)) == 1


def test_it_comes_back_when_it_is_due_and_then_can_be_put_aside_for_longer(
    asked: Questions, ann: Person
) -> None:
    due = datetime.now(UTC) + timedelta(minutes=20)
    task = asked.task(due_at=due)

    assert "when it is due" in done(put_aside(ann, task), ann)
    assert [row.until for row in kept(asked.tenant)] == [due]

    with tenant_scope(asked.tenant.pk):
        Activity.objects.filter(pk=task.pk).update(due_at=datetime.now(UTC) - timedelta(minutes=1))
    set_until(asked.tenant, datetime.now(UTC) - timedelta(minutes=1))
    assert "overdue by 1 min" in words(ann.get())
    put_aside(ann, task)
    assert names(ann.get()) == []


def test_times_are_of_the_tenants_zone(asked: Questions, ann: Person) -> None:
    with tenant_scope(asked.tenant.pk):
        Tenant.objects.filter(pk=asked.tenant.pk).update(timezone="Asia/Tokyo")
    task = asked.task()
    day = (datetime.now(UTC) + timedelta(days=2)).date()

    said = done(put_aside(ann, task, "own", own=f"{day}T09:00"), ann)

    assert said.startswith(f"Snoozed until {day:%-d %b}, 09:00 Asia/Tokyo")
    assert [row.until for row in kept(asked.tenant)] == [datetime(day.year, day.month, day.day, tzinfo=UTC)]
    assert f"snoozed until {day:%-d %b}, 09:00 Asia/Tokyo" in words(ann.get(ASIDE))


def test_who_may_only_look_puts_aside_too(asked: Questions, person: Callable[..., Person]) -> None:
    vera, task = person("vera", role="viewer"), asked.task()

    done(put_aside(vera, task), vera)

    assert names(vera.get()) == []


def test_who_looks_through_broken_glass_is_offered_nothing(
    asked: Questions, ann: Person, root: Person
) -> None:
    task = asked.task()
    form = forms_of(ann.look(task))["put-aside"]

    assert "put-aside" not in forms_of(root.look(task, "?tenant=acme"))
    assert "Only members" in refused(sent_by(root, form, aside="hour"), 403)
    assert kept(asked.tenant) == []


@pytest.mark.parametrize(
    ("fields", "status", "reason"),
    [
        ({"aside": "own", "own": "2020-01-01T09:00"}, 400, "That time has passed."),
        ({"aside": "own", "own": "9000-01-01T09:00"}, 400, "An item can be snoozed for at most 90 days."),
        ({"aside": "own", "own": "tea"}, 400, "Enter a date and a time"),
        ({"aside": "nonsense"}, 400, "This choice is not valid."),
        ({"aside": "hour", "shown": "x"}, 400, "This page is outdated."),
        ({"aside": "hour", "shown": "99"}, 409, "Changed by planner (token)"),
    ],
    ids=["past", "too-far", "no-time", "no-choice", "no-version", "other-version"],
)
def test_what_cannot_be_says_why_and_keeps_what_was_typed(
    fields: dict[str, str], status: int, reason: str, asked: Questions, ann: Person
) -> None:
    task = asked.task()

    answer = sent_by(ann, forms_of(ann.look(task))["put-aside"], **fields)

    assert refused(answer, status).startswith(reason)
    assert forms_of(answer)["put-aside"].fields["own"] == [fields.get("own", "")]
    assert names(ann.get()) == [task.name]


def test_what_is_over_is_put_aside_by_nobody(asked: Questions, ann: Person) -> None:
    task = asked.task()
    form = forms_of(ann.look(task))["put-aside"]
    human_work.complete(asked.tenant.pk, task.pk, actor="user:bob")

    assert refused(form.send(ann.browser, ("aside", "hour")), 409).startswith("Completed by bob")
    again = sent_by(ann, form, aside="hour", shown=str(asked.get(task.pk).version))
    assert refused(again, 409) == "This item is closed already."
    assert kept(asked.tenant) == []


def test_items_of_another_tenant_and_of_nowhere_are_not_found(
    asked: Questions, ann: Person, other_tenant: Tenant, person: Callable[..., Person]
) -> None:
    task, eve = asked.task(), person("eve", other_tenant)
    form = forms_of(ann.look(task))["put-aside"]
    form.action = f"{INBOX}{task.pk}/"
    back = Form(f"{INBOX}back/", "post")

    assert sent_by(eve, form, aside="hour").status_code == 404
    for item in (task.pk, uuid4(), "x"):
        assert sent_by(eve, back, item=str(item)).status_code == 404
    assert ann.browser.get(f"{INBOX}?aside=no").status_code == 404
    assert ann.browser.get(f"{INBOX}back/").status_code == 405


def test_who_puts_it_aside_many_times_at_once_has_it_aside_once(asked: Questions, ann: Person) -> None:
    from console.inbox.snooze import snooze as put

    task, who = asked.task(), principal_of(ann.user)
    until = datetime.now(UTC) + timedelta(hours=2)

    at_once(*(lambda: put(who, task.pk, version=task.version, until=until) for _ in range(4)))

    assert [row.until for row in kept(asked.tenant)] == [until]


def test_it_goes_with_the_membership_and_with_the_item(
    asked: Questions, ann: Person, person: Callable[..., Person]
) -> None:
    bob, boss, task = person("bob"), person("boss", role="admin"), asked.task()
    put_aside(ann, task), put_aside(bob, task)
    with tenant_scope(asked.tenant.pk):
        hers = Membership.objects.get(user=ann.user)

    members.end_membership(principal_of(boss.user), hers.pk)
    assert len(kept(asked.tenant)) == 1
    human_work.complete(asked.tenant.pk, task.pk, actor="user:bob")
    age_work([task.pk])
    assert purge(asked.tenant, "activities") == 1
    assert kept(asked.tenant) == []


def test_what_has_come_back_long_ago_is_not_kept(asked: Questions, ann: Person) -> None:
    one, two = asked.task("One"), asked.task("Two")
    put_aside(ann, one)
    set_until(asked.tenant, datetime.now(UTC) - timedelta(days=1))

    put_aside(ann, two)

    assert [row.activity_id for row in kept(asked.tenant)] == [two.pk]


def test_the_list_asks_no_more_for_what_is_put_aside(
    asked: Questions, ann: Person, asked_queries: Callable[[Person, str], list[str]]
) -> None:
    items = [asked.task(f"Task {number}") for number in range(4)]
    before = {address: len(asked_queries(ann, address)) for address in (INBOX, f"{INBOX}{items[3].pk}/")}

    for item in items:
        put_aside(ann, item)

    after: dict[str, Any] = {address: len(asked_queries(ann, address)) for address in before}
    assert after == before
    assert after[INBOX] <= 12
    assert len(asked_queries(ann, ASIDE)) == after[INBOX]
