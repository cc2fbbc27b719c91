"""Dead letters of mailbox items: alerts, retries, replays and dismissal."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest
from django.db import OperationalError
from django.db.models.functions import Now
from psycopg.errors import LockNotAvailable
from rest_framework.test import APIClient

from activities import dead_letters
from activities.mailboxes import consumer
from activities.maintenance import invariants
from activities.models import DeadLetter, LeaderLease, Mailbox, MailboxBatch, MailboxItem
from tenants import clock, sweeps
from tenants.context import system_scope, tenant_scope
from tenants.models import Tenant
from tenants.models.events import FreshEvent
from tests.answers import problem
from tests.engine import eventually, in_another_thread, somebody_waits_for_a_lock
from tests.integration.test_mailboxes import BOX, end_batch, post_item, statuses, take, texts

LETTERS = "/api/v1/dead-letters/"


@pytest.fixture
def client(api: Callable[..., APIClient]) -> APIClient:
    return api("operator")


def letters(client: APIClient, **filters: Any) -> list[Any]:
    return list(client.get(LETTERS, filters).json()["results"])


def fail_items(client: APIClient, *texts_to_fail: str, error: Any = "no such site") -> list[Any]:
    """Post items and let them fail permanently; return them as posted."""
    items = [post_item(client, text, max_attempts=1, is_coalescable=False) for text in texts_to_fail]
    for _ in texts_to_fail:
        assert end_batch(client, take(client), "failed", error=error).status_code == 200
    return items


def take_and_die(client: APIClient, tenant: Tenant) -> None:
    """Take the due items, and let the lease expire."""
    batch = take(client)
    with tenant_scope(tenant.pk):
        MailboxBatch.objects.filter(pk=batch["batch_id"]).update(leased_until=Now())


def test_a_permanently_failed_item_is_a_dead_letter_with_an_alert_and_an_event(
    client: APIClient, tenant: Tenant
) -> None:
    (item,) = fail_items(client, "hello")

    (letter,) = letters(client, kind="mailbox_item")
    assert (letter["kind"], letter["activity"], letter["mailbox"], letter["mailbox_item"]) == (
        "mailbox_item", None, "session-1", item["id"],
    )  # fmt: skip
    assert (letter["reason"], letter["attempts"], letter["error"]["message"]) == (
        "exhausted",
        1,
        "no such site",
    )
    assert letter["link"] == f"{BOX}items/{item['id']}/"
    assert client.get(letter["link"]).json()["status"] == "failed"
    assert letters(client, kind="activity") == []
    dead_letters.handle_waiting()
    (alert,) = client.get("/api/v1/alerts/", {"kind": "dead_letter"}).json()["results"]
    assert "session-1" in alert["title"]
    assert letters(client)[0]["handled_at"] is not None
    with tenant_scope(tenant.pk):
        (event,) = FreshEvent.objects.filter(tenant_id=tenant.pk, kind="dead_letter").values_list(
            "data", flat=True
        )
    assert event["dead_letter"] == letter["id"]
    assert invariants.check() == []


def test_an_item_with_attempts_left_is_no_dead_letter(client: APIClient) -> None:
    post_item(client, max_attempts=2)
    end_batch(client, take(client), "failed", error="busy")

    assert letters(client) == []


def test_an_item_that_is_not_retryable_is_a_dead_letter_at_once(client: APIClient) -> None:
    post_item(client, max_attempts=5)
    end_batch(client, take(client), "failed", error="nonsense", retryable=False)

    assert [letter["reason"] for letter in letters(client)] == ["permanent"]


@pytest.mark.parametrize(
    ("led_until", "counts"),
    [(40, False), (19, False), (10, True), (70, True), (-60, True)],
    ids=["before it", "just before it", "after it", "before the batch was taken", "now"],
)
def test_a_lease_that_expires_while_no_process_leads_uses_no_attempt(
    client: APIClient, tenant: Tenant, led_until: float, counts: bool
) -> None:
    """The batch was taken 60 s ago and its lease expired 20 s ago; after an outage a new leader would have extended it."""
    item = post_item(client, max_attempts=1)
    batch = take(client)
    with tenant_scope(tenant.pk):
        MailboxBatch.objects.filter(pk=batch["batch_id"]).update(
            created_at=Now() - timedelta(seconds=60), leased_until=Now() - timedelta(seconds=20)
        )
    leader = {"holder": uuid4(), "epoch": 1, "host": "here", "pid": 1}
    with system_scope():
        LeaderLease.objects.update_or_create(
            defaults={**leader, "expires_at": Now() - timedelta(seconds=led_until)}
        )

    assert consumer.release_all_expired() == 1

    item_now = client.get(f"{BOX}items/{item['id']}/").json()
    assert (item_now["status"], item_now["attempts"]) == (("failed", 1) if counts else ("pending", 0))
    assert len(letters(client)) == counts


def test_a_lease_that_expires_while_its_tenant_is_suspended_uses_no_attempt(
    client: APIClient, tenant: Tenant
) -> None:
    """The consumer can neither report nor extend its lease, because its token is refused."""
    item = post_item(client, max_attempts=1)
    take_and_die(client, tenant)
    with system_scope():
        Tenant.objects.filter(pk=tenant.pk).update(is_active=False)

    assert consumer.release_all_expired() == 1

    with system_scope():
        Tenant.objects.filter(pk=tenant.pk).update(is_active=True)
    item_now = client.get(f"{BOX}items/{item['id']}/").json()
    assert (item_now["status"], item_now["attempts"], letters(client)) == ("pending", 0, [])


def test_items_of_dead_consumers_fail_although_no_other_consumer_takes(
    client: APIClient, tenant: Tenant
) -> None:
    post_item(client, max_attempts=1)
    take_and_die(client, tenant)
    with system_scope():
        assert consumer.list_expired().exists()  # this starts the background task

    assert consumer.release_all_expired() == 1

    assert [(letter["reason"], letter["error"]["code"]) for letter in letters(client)] == [
        ("stalled", "lease_expired")
    ]
    assert consumer.release_all_expired() == 0


def test_a_lease_that_cannot_end_keeps_no_other_from_its_end(
    client: APIClient, tenant: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweeps, "PAGE", 1)
    for key in ("session-1", "session-2"):
        box = BOX.replace("session-1", key)
        client.post(f"{box}items/", {"kind": "message", "text": "hello"}, format="json")
        client.post(f"{box}take/", {"consumer": "c1", "window_ms": 0}, format="json")
    with tenant_scope(tenant.pk):
        MailboxBatch.objects.update(leased_until=Now())
    release = consumer.release_expired

    def release_others(mailbox: Mailbox, now: datetime) -> int:
        if mailbox.key == "session-1":
            raise ZeroDivisionError
        return release(mailbox, now)

    monkeypatch.setattr(consumer, "release_expired", release_others)

    assert consumer.release_all_expired() == 1


def test_failures_with_equal_fingerprints_are_one_group(client: APIClient) -> None:
    fail_items(client, "one", "two", error="no site 17")
    (other,) = fail_items(client, "three", error="out of memory")

    groups = client.get(f"{LETTERS}groups/", {"kind": "mailbox_item"}).json()["results"]

    assert [(group["count"], group["open"]) for group in groups] == [(2, 2), (1, 1)]
    assert groups[1]["example"]["mailbox_item"] == other["id"]


def test_replayed_items_are_taken_again_with_all_their_attempts(client: APIClient) -> None:
    fail_items(client, "one", "two")
    filters = {"filter": {"kind": "mailbox_item", "mailbox": "session-1"}}

    dry = client.post(f"{LETTERS}replay/", {**filters, "dry_run": True}, format="json").json()
    assert (dry["count"], statuses(client)) == (2, {"one": "failed", "two": "failed"})
    done = client.post(f"{LETTERS}replay/", filters, format="json").json()
    again = client.post(f"{LETTERS}replay/", filters, format="json").json()

    assert (done["count"], again["count"]) == (2, 0)
    assert {letter["state"] for letter in letters(client)} == {"replayed"}
    batch = take(client)
    assert (texts(batch), batch["items"][0]["attempts"]) == (["one"], 1)
    end_batch(client, batch, "failed", error="no such site")
    assert sorted(letter["state"] for letter in letters(client)) == ["open", "replayed", "replayed"]


def test_two_replays_at_once_reopen_an_item_once(client: APIClient, tenant: Tenant) -> None:
    fail_items(client, "one")
    counts = list[int]()

    def replay() -> None:
        with tenant_scope(tenant.pk):
            chosen = DeadLetter.objects.for_tenant(tenant.pk)
            counts.append(dead_letters.replay(tenant.pk, chosen, actor="test").count)

    second = threading.Thread(target=in_another_thread, args=(replay,))
    with tenant_scope(tenant.pk):
        replay()
        second.start()
        eventually(somebody_waits_for_a_lock)
    second.join()

    assert counts == [1, 0]


def test_a_replay_has_the_requested_rate(client: APIClient) -> None:
    fail_items(client, "one", "two", "three")

    done = client.post(
        f"{LETTERS}replay/", {"filter": {"state": "open"}, "per_second": 0.1}, format="json"
    ).json()

    assert (done["count"], done["seconds"]) == (3, 20.0)
    assert texts(take(client)) == ["one"]
    assert take(client) is None


def test_one_item_can_be_retried_or_cancelled_by_its_dead_letter_or_directly(client: APIClient) -> None:
    one, two, three, four = fail_items(client, "one", "two", "three", "four")
    ids = {letter["mailbox_item"]: letter["id"] for letter in letters(client)}

    assert client.post(f"{LETTERS}{ids[one['id']]}/replay/").status_code == 200
    problem(client.post(f"{LETTERS}{ids[one['id']]}/replay/"), 409, "transition_refused")
    body = {"ids": [ids[two["id"]]], "reason": "old"}
    assert client.post(f"{LETTERS}dismiss/", body, format="json").json()["count"] == 1
    assert client.post(f"{BOX}items/{three['id']}/retry/").json()["status"] == "pending"
    assert client.post(f"{BOX}items/{four['id']}/cancel/").json()["status"] == "cancelled"

    assert statuses(client) == {"one": "pending", "two": "cancelled", "three": "pending", "four": "cancelled"}
    assert {letter["mailbox_item"]: letter["state"] for letter in letters(client)} == {
        one["id"]: "replayed", two["id"]: "closed", three["id"]: "replayed", four["id"]: "closed",
    }  # fmt: skip
    problem(client.post(f"{BOX}items/{four['id']}/retry/"), 409, "item_refused")


def test_a_waiting_item_can_be_cancelled_and_a_taken_one_cannot(client: APIClient, tenant: Tenant) -> None:
    waiting = post_item(client, "waits")
    assert client.post(f"{BOX}items/{waiting['id']}/cancel/").json()["status"] == "cancelled"
    taken = post_item(client, "taken")
    take(client)

    problem(client.post(f"{BOX}items/{taken['id']}/cancel/"), 409, "item_refused")
    problem(client.post(f"{BOX}items/{taken['id']}/retry/"), 409, "item_refused")
    with tenant_scope(tenant.pk):
        assert MailboxItem.objects.get(pk=taken["id"]).state == "claimed"


def test_dead_letters_of_another_tenant_are_inaccessible(
    client: APIClient, api: Callable[..., APIClient], other_tenant: Tenant
) -> None:
    (item,) = fail_items(client, "secret")
    stranger = api("operator", other_tenant)

    assert letters(stranger) == []
    assert (
        stranger.post(f"{LETTERS}replay/", {"filter": {"state": "open"}}, format="json").json()["count"] == 0
    )
    assert stranger.post(f"{BOX}items/{item['id']}/retry/").status_code == 404
    assert statuses(client) == {"secret": "failed"}


def test_a_locked_mailbox_does_not_keep_the_dead_consumers_of_others(
    client: APIClient, tenant: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    with tenant_scope(tenant.pk):
        for key in ("locked", "free"):
            mailbox = Mailbox.objects.create(tenant_id=tenant.pk, key=key)
            options = consumer.TakeOptions(
                consumer="c1", lease=timedelta(seconds=-1), window=timedelta(), limit=1
            )
            consumer._begin_batch(mailbox, options, clock.now(), 1)
    release = consumer.release_expired

    def release_in_time(mailbox: Mailbox, now: datetime) -> int:
        if mailbox.key == "locked":
            raise OperationalError("lock timeout") from LockNotAvailable("lock timeout")
        return release(mailbox, now)

    monkeypatch.setattr(consumer, "release_expired", release_in_time)

    assert consumer.release_all_expired() == 1
