"""Mailboxes with external consumers: batches, leases, attempts and access."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from threading import Event
from typing import Any
from urllib.parse import quote
from uuid import UUID, uuid4

import pytest
from rest_framework.test import APIClient

from activities.exceptions import LeaseLost
from activities.mailboxes import consumer, producer
from activities.mailboxes.consumer import TakenBatch, TakeOptions
from activities.mailboxes.producer import NewItem
from activities.models import Mailbox, MailboxBatch, MailboxItem
from tenants.context import tenant_scope
from tenants.models import Tenant
from tests.answers import problem
from tests.cases import in_one_test
from tests.engine import eventually, simultaneously, somebody_waits_for_a_lock
from tests.metrics import samples, scrape

BOX = "/api/v1/mailboxes/session-1/"
NOW = datetime(2026, 5, 1, tzinfo=UTC) + timedelta(days=3650)  # later than any item of a test


@pytest.fixture
def client(api: Callable[..., APIClient]) -> APIClient:
    return api("operator")


def post_item(client: APIClient, text: str = "hello", **more: Any) -> Any:
    answer = client.post(f"{BOX}items/", {"kind": "message", "text": text, **more}, format="json")
    assert answer.status_code in (200, 201), answer.content
    return answer.json()


def take(client: APIClient, **more: Any) -> Any:
    answer = client.post(f"{BOX}take/", {"consumer": "c1", "window_ms": 0, **more}, format="json")
    assert answer.status_code in (200, 204), answer.content
    return answer.json() if answer.status_code == 200 else None


def end_batch(client: APIClient, batch: Any, outcome: str, **body: Any) -> Any:
    return client.post(f"{BOX}batches/{batch['batch_id']}/{outcome}/", body, format="json")


def texts(batch: Any) -> list[str]:
    return [item["text"] for item in batch["items"]]


def statuses(client: APIClient) -> dict[str, str]:
    return {item["text"]: item["status"] for item in client.get(f"{BOX}items/").json()["results"]}


def post_directly(tenant: Tenant, *texts_to_post: str, **fields: Any) -> list[UUID]:
    with tenant_scope(tenant.pk):
        return [
            producer.post(tenant.pk, "session-1", NewItem(text=text, **fields), actor="test").item.pk
            for text in texts_to_post
        ]


def take_at(tenant: Tenant, now: datetime, lease: float = 300, limit: int = 10) -> TakenBatch | None:
    options = TakeOptions(consumer="c1", lease=timedelta(seconds=lease), window=timedelta(0), limit=limit)
    return consumer.take(tenant.pk, "session-1", options, now=lambda: now)


def test_messages_are_taken_in_one_ordered_batch_and_are_done_with_it(client: APIClient) -> None:
    posted = [post_item(client, text)["id"] for text in ("one", "two", "three")]

    batch = take(client)

    assert texts(batch) == ["one", "two", "three"]
    assert [item["id"] for item in batch["items"]] == posted
    assert (batch["merged_count"], batch["queue_length_after"], batch["fence"]) == (3, 0, 1)
    assert take(client) is None
    done = end_batch(client, batch, "completed", result={"said": "ok"})
    assert (done.status_code, done.json()["state"], done.json()["result"]) == (
        200,
        "completed",
        {"said": "ok"},
    )
    assert set(statuses(client).values()) == {"done"}


def test_metrics_count_the_open_items_of_external_consumers(client: APIClient, tenant: Tenant) -> None:
    post_item(client, "done")
    end_batch(client, take(client), "completed")
    post_item(client, "taken")
    take(client)
    for text in ("one", "two"):
        post_item(client, text)
    post_item(client, "later", run_after=(datetime.now(UTC) + timedelta(hours=1)).isoformat())
    client.post("/api/v1/mailboxes/of-an-agent/items/", {"text": "hi", "agent_role": "qa"}, format="json")
    with tenant_scope(tenant.pk):
        MailboxItem.objects.filter(text="two").update(created_at=datetime.now(UTC) - timedelta(hours=2))

    figures = samples(scrape())

    assert {state: figures["mailbox_items", state] for state in ("waiting", "delayed", "claimed")} == {
        "waiting": 2, "delayed": 1, "claimed": 1,
    }  # fmt: skip
    assert 7_200 <= figures["mailbox_oldest_wait_seconds",] < 7_260


def test_a_repeated_message_is_one_item(client: APIClient) -> None:
    first = client.post(
        f"{BOX}items/", {"kind": "message", "text": "hi", "client_message_id": "m1"}, format="json"
    )
    again = client.post(
        f"{BOX}items/", {"kind": "message", "text": "hi", "client_message_id": "m1"}, format="json"
    )

    assert (first.status_code, again.status_code) == (201, 200)
    assert first.json()["id"] == again.json()["id"]
    assert take(client)["merged_count"] == 1


def test_a_message_that_is_sent_several_times_at_once_is_one_item(tenant: Tenant) -> None:
    post_directly(tenant, "before")
    same = partial(post_directly, tenant, "hi", client_message_id="m1")

    posted = simultaneously(*[same] * 6)

    assert len({item_ids[0] for item_ids in posted}) == 1
    with tenant_scope(tenant.pk):
        assert MailboxItem.objects.filter(client_message_id="m1").count() == 1


def test_notifications_and_items_that_must_not_be_joined_have_their_own_batch(client: APIClient) -> None:
    post_item(client, "one")
    client.post(f"{BOX}items/", {"kind": "task_notification", "content": {"task_id": "t"}}, format="json")
    post_item(client, "alone", is_coalescable=False)
    post_item(client, "two")

    batches = [take(client) for _ in range(4)]

    assert [[item["kind"] for item in batch["items"]] for batch in batches[:3]] == [
        ["message", "message"], ["task_notification"], ["message"],
    ]  # fmt: skip
    assert [batch["queue_length_after"] for batch in batches[:3]] == [2, 1, 0]
    assert texts(batches[0]) == ["one", "two"]
    assert batches[3] is None


def test_a_batch_contains_items_of_one_scope_only(client: APIClient) -> None:
    for text, scope in (("a1", "a"), ("b1", "b"), ("none 1", ""), ("a2", "a"), ("b2", "b"), ("none 2", "")):
        post_item(client, text, scope_key=scope)
    post_item(client, "a3", scope_key="a", priority=9)

    batches = [take(client) for _ in range(4)]

    assert [texts(batch) for batch in batches[:3]] == [["a1", "a2", "a3"], ["b1", "b2"], ["none 1", "none 2"]]
    assert [item["scope_key"] for item in batches[0]["items"]] == ["a", "a", "a"]
    assert batches[3] is None


def test_urgent_items_are_taken_first_up_to_the_limit(client: APIClient) -> None:
    for text, priority in (("later", 7), ("b", 5), ("first", 0), ("c", 5)):
        post_item(client, text, priority=priority)

    first, second = take(client, limit=3), take(client, limit=3)

    assert sorted(texts(first)) == ["b", "c", "first"]
    assert first["queue_length_after"] == 1
    assert texts(second) == ["later"]


def test_a_delayed_item_is_not_taken_before_its_time(client: APIClient, tenant: Tenant) -> None:
    due = datetime.now(UTC) + timedelta(hours=1)
    post_item(client, "later", run_after=due.isoformat())

    assert take(client) is None
    batch = take_at(tenant, due)
    assert batch is not None
    assert [item.text for item in batch.items] == ["later"]


def test_later_items_join_the_batch_within_the_window_of_the_first(tenant: Tenant) -> None:
    """The consumer waits for the rest of the window, and items posted meanwhile are in its batch."""
    (first,) = post_directly(tenant, "one")
    with tenant_scope(tenant.pk):
        created_at = MailboxItem.objects.get(pk=first).created_at
    pauses: list[float] = []

    def pause(seconds: float) -> None:
        pauses.append(round(seconds, 3))
        post_directly(tenant, "two")

    options = TakeOptions(
        consumer="c", lease=timedelta(minutes=5), window=timedelta(milliseconds=50), limit=10
    )
    batch = consumer.take(
        tenant.pk, "session-1", options, now=lambda: created_at + timedelta(milliseconds=20), pause=pause
    )

    assert pauses == [0.03]
    assert batch is not None
    assert [item.text for item in batch.items] == ["one", "two"]


def test_concurrent_consumers_get_different_items(tenant: Tenant) -> None:
    posted = post_directly(tenant, *(f"m{number}" for number in range(12)))

    outcomes = simultaneously(*[partial(take_at, tenant, NOW, limit=3)] * 6)

    batches = [batch for batch in outcomes if batch is not None]
    item_ids = [item.pk for batch in batches for item in batch.items]
    assert len(batches) == 4
    assert sorted(item_ids) == sorted(posted)
    assert sorted(batch.batch.fence for batch in batches) == [1, 2, 3, 4]


def test_the_items_of_a_dead_consumer_are_taken_again_with_one_attempt_less(tenant: Tenant) -> None:
    post_directly(tenant, "one", max_attempts=2)
    first = take_at(tenant, NOW, lease=60)
    assert first is not None
    assert take_at(tenant, NOW + timedelta(seconds=59)) is None

    second = take_at(tenant, NOW + timedelta(seconds=60), lease=60)

    assert second is not None
    assert [(item.text, item.attempts) for item in second.items] == [("one", 2)]
    with tenant_scope(tenant.pk), pytest.raises(LeaseLost):
        consumer.complete_batch(tenant.pk, "session-1", first.batch.pk, result=None, now=NOW)
    assert take_at(tenant, NOW + timedelta(seconds=120)) is None  # no attempts left
    with tenant_scope(tenant.pk):
        item = MailboxItem.objects.get()
        assert (item.state, item.error["code"]) == ("failed", "lease_expired")


def test_a_heartbeat_extends_the_lease(tenant: Tenant) -> None:
    post_directly(tenant, "one")
    batch = take_at(tenant, NOW, lease=60)
    assert batch is not None

    for seconds in (60, 1):  # a heartbeat never shortens the lease
        with tenant_scope(tenant.pk):
            consumer.extend_batch(
                tenant.pk,
                "session-1",
                batch.batch.pk,
                lease=timedelta(seconds=seconds),
                now=NOW + timedelta(seconds=50),
            )

    assert take_at(tenant, NOW + timedelta(seconds=100)) is None
    assert take_at(tenant, NOW + timedelta(seconds=110)) is not None


def test_a_heartbeat_for_an_ended_batch_is_refused(tenant: Tenant) -> None:
    post_directly(tenant, "one")
    first = take_at(tenant, NOW, lease=60)
    second = take_at(tenant, NOW + timedelta(seconds=60), lease=60)
    assert first is not None
    assert second is not None

    with tenant_scope(tenant.pk):
        with pytest.raises(LeaseLost):
            consumer.extend_batch(
                tenant.pk,
                "session-1",
                first.batch.pk,
                lease=timedelta(seconds=600),
                now=NOW + timedelta(seconds=61),
            )
        ended = MailboxBatch.objects.get(pk=first.batch.pk)

    assert (ended.state, ended.leased_until) == ("expired", first.batch.leased_until)


def test_a_failed_batch_is_retried_after_a_doubling_delay(tenant: Tenant) -> None:
    post_directly(tenant, "one", max_attempts=4, backoff={"max_seconds": 3.0})
    now, delays = NOW, []

    for _ in range(3):
        batch = take_at(tenant, now)
        assert batch is not None
        with tenant_scope(tenant.pk):
            consumer.fail_batch(
                tenant.pk, "session-1", batch.batch.pk, error={"message": "no"}, retryable=True, now=now
            )
            item = MailboxItem.objects.get()
        assert item.due_at is not None
        delays.append((item.due_at - now).total_seconds())
        assert take_at(tenant, item.due_at - timedelta(milliseconds=1)) is None
        now = item.due_at

    assert [pytest.approx(base, rel=0.11) for base in (1, 2, 3)] == delays


def test_a_batch_that_fails_permanently_is_not_retried(client: APIClient) -> None:
    post_item(client, "one")
    batch = take(client)

    answer = end_batch(client, batch, "failed", error="broken", retryable=False)
    again = end_batch(client, batch, "failed", error="broken", retryable=False)

    assert (answer.status_code, again.status_code) == (200, 200)
    assert answer.json()["error"] == {"message": "broken"}
    assert statuses(client) == {"one": "failed"}
    late = end_batch(client, batch, "completed")
    assert (late.status_code, late.json()["code"]) == (409, "lease_lost")


def test_a_mailbox_shows_the_counts_of_its_items(client: APIClient) -> None:
    post_item(client, "one")
    take(client)
    post_item(client, "two")

    one = client.get(BOX).json()
    listed = client.get("/api/v1/mailboxes/").json()["results"]

    assert (one["key"], one["pending"], one["claimed"], one["failed"]) == ("session-1", 1, 1, 0)
    assert one["oldest_wait_seconds"] >= 0
    assert [box["key"] for box in listed] == ["session-1"]
    pending = client.get(f"{BOX}items/?status=pending").json()["results"]
    assert [item["text"] for item in pending] == ["two"]


def test_the_etag_of_a_mailbox_does_not_change_with_time_alone(client: APIClient) -> None:
    post_item(client, "one")
    first = client.get(BOX)

    later = client.get(BOX, headers={"If-None-Match": first["ETag"]})
    post_item(client, "two")

    assert later.status_code == 304
    assert client.get(BOX)["ETag"] != first["ETag"]


@pytest.mark.parametrize(
    ("body", "path"),
    [
        ({"text": "x"}, "kind"),
        ({"kind": "shout", "text": "x"}, "kind"),
        ({"kind": "message"}, "content"),
        ({"kind": "message", "text": "x", "priority": 10}, "priority"),
        ({"kind": "task_notification", "text": "x", "is_coalescable": True}, "is_coalescable"),
        ({"kind": "message", "text": "x", "agent_role": "nobody"}, "agent_role"),
        ({"kind": "message", "text": "x", "colour": 1}, "colour"),
    ],
)
def test_an_error_names_its_path_in_the_answer(client: APIClient, body: Any, path: str) -> None:
    answer = client.post(f"{BOX}items/", body, format="json")

    assert answer.status_code == 400
    assert path in {fault["path"] for fault in answer.json()["errors"]}


@in_one_test("key", ["a/b", "..", ".", "two\nlines", "\u202eesrever", " ", "k" * 201])
def test_a_key_that_no_address_can_name_is_refused_wherever_a_mailbox_is_named(
    client: APIClient, key: str
) -> None:
    requests = {
        "mailbox": ("/api/v1/activities/", {"name": "Look", "human_role": "editor", "mailbox": key}),
        "parent_mailbox": (
            "/api/v1/subagents/",
            {"subagent_type": "qa", "prompt": "Look.", "parent_mailbox": key},
        ),
    }
    if "/" not in key:
        requests["key"] = (f"/api/v1/mailboxes/{quote(key)}/items/", {"kind": "message", "text": "hi"})

    for path, (address, body) in requests.items():
        errors = problem(client.post(address, body, format="json"), 400, "validation_failed")["errors"]
        assert [error["path"] for error in errors] == [path]


def test_a_full_mailbox_refuses_items(client: APIClient, settings: Any) -> None:
    settings.ORCHESTRATOR_MAILBOX_ITEMS = 2
    post_item(client, "one")
    post_item(client, "two")

    refused = client.post(f"{BOX}items/", {"kind": "message", "text": "three"}, format="json")

    assert (refused.status_code, refused.json()["code"]) == (429, "mailbox_full")


def test_another_tenant_has_no_access_to_the_mailbox(
    client: APIClient, api: Callable[..., APIClient], other_tenant: Tenant
) -> None:
    post_item(client, "one")
    batch = take(client)
    stranger = api("operator", other_tenant)

    answers = [
        stranger.get(BOX),
        stranger.get(f"{BOX}items/"),
        stranger.post(f"{BOX}take/", {"consumer": "x"}, format="json"),
        end_batch(stranger, batch, "completed"),
        end_batch(stranger, batch, "heartbeat"),
        end_batch(stranger, {"batch_id": uuid4()}, "failed", error="x"),
    ]

    assert {answer.status_code for answer in answers} == {404}
    assert stranger.get("/api/v1/mailboxes/").json()["results"] == []


def test_a_token_for_one_mailbox_has_no_access_to_others(
    client: APIClient, api: Callable[..., APIClient]
) -> None:
    post_item(client, "one")
    other = BOX.replace("session-1", "session-2")
    client.post(f"{other}items/", {"kind": "message", "text": "two"}, format="json")
    theirs = client.post(f"{other}take/", {"consumer": "x"}, format="json").json()
    limited_client = api("operator", scopes=["mailboxes:write:session-1"])

    assert texts(take(limited_client)) == ["one"]
    assert limited_client.get(f"{BOX}items/").status_code == 200
    refused = [
        limited_client.get(other),
        limited_client.get(f"{other}items/"),
        limited_client.post(f"{other}items/", {"kind": "message", "text": "x"}, format="json"),
        limited_client.post(f"{other}take/", {"consumer": "x"}, format="json"),
        limited_client.post(f"{other}batches/{theirs['batch_id']}/completed/", {}, format="json"),
        limited_client.get("/api/v1/mailboxes/"),
        limited_client.get("/api/v1/activities/"),
    ]
    assert {answer.status_code for answer in refused} == {403}
    # Batches of another mailbox do not exist under its own address.
    assert end_batch(limited_client, theirs, "completed").status_code == 404
    assert end_batch(limited_client, theirs, "heartbeat").status_code == 404

    reader = api("operator", scopes=["mailboxes:read:session-1"])
    assert reader.get(BOX).status_code == 200
    assert reader.post(f"{BOX}take/", {"consumer": "x"}, format="json").status_code == 403


def test_a_viewer_can_only_read(client: APIClient, api: Callable[..., APIClient]) -> None:
    post_item(client, "one")
    viewer = api("viewer")

    assert viewer.get(f"{BOX}items/").status_code == 200
    assert viewer.post(f"{BOX}take/", {"consumer": "x"}, format="json").status_code == 403
    assert viewer.post(f"{BOX}items/", {"kind": "message", "text": "x"}, format="json").status_code == 403


def test_a_mailbox_of_an_agent_has_no_other_consumer(client: APIClient) -> None:
    post_item(client, "one", agent_role="qa")

    taken = client.post(f"{BOX}take/", {"consumer": "x"}, format="json")
    other = client.post(f"{BOX}items/", {"kind": "message", "text": "x", "agent_role": "dev"}, format="json")

    assert [(answer.status_code, answer.json()["code"]) for answer in (taken, other)] == [
        (409, "other_consumer")
    ] * 2


def test_an_ended_batch_cannot_fail(tenant: Tenant) -> None:
    post_directly(tenant, "one")
    batch = take_at(tenant, NOW)
    assert batch is not None
    with tenant_scope(tenant.pk):
        consumer.complete_batch(tenant.pk, "session-1", batch.batch.pk, result=None, now=NOW)
        with pytest.raises(LeaseLost):
            consumer.fail_batch(
                tenant.pk, "session-1", batch.batch.pk, error={"message": "no"}, retryable=True, now=NOW
            )
        item, ended = MailboxItem.objects.get(), MailboxBatch.objects.get(pk=batch.batch.pk)

    assert (item.state, item.error, ended.state) == ("done", None, "completed")


def test_releasing_expired_batches_waits_for_a_consumer_that_is_completing(tenant: Tenant) -> None:
    """Both lock the mailbox first, as taking a batch does."""
    post_directly(tenant, "one")
    batch = take_at(tenant, datetime.now(UTC), lease=0)
    assert batch is not None
    locked = Event()

    def complete() -> None:
        with tenant_scope(tenant.pk):
            Mailbox.objects.select_for_update().get(key="session-1")
            locked.set()
            eventually(somebody_waits_for_a_lock)
            consumer.complete_batch(tenant.pk, "session-1", batch.batch.pk, result=None, now=NOW)

    def release() -> int:
        assert locked.wait(60)
        return consumer.release_all_expired()

    assert simultaneously(complete, release) == [None, 0]
    with tenant_scope(tenant.pk):
        assert MailboxItem.objects.get().state == "done"


def test_a_consumer_that_completes_while_its_batch_is_released_is_refused(
    tenant: Tenant,
) -> None:
    post_directly(tenant, "one")
    batch = take_at(tenant, NOW, lease=0)
    assert batch is not None
    locked = Event()

    def release() -> int:
        with tenant_scope(tenant.pk):
            mailbox = Mailbox.objects.select_for_update().get(key="session-1")
            locked.set()
            eventually(somebody_waits_for_a_lock)
            return consumer.release_expired(mailbox, NOW)

    def complete() -> None:
        assert locked.wait(60)
        with tenant_scope(tenant.pk):
            consumer.complete_batch(tenant.pk, "session-1", batch.batch.pk, result=None, now=NOW)

    released, refusal = simultaneously(release, complete)

    assert released == 1
    assert isinstance(refusal, LeaseLost)
    with tenant_scope(tenant.pk):
        assert MailboxItem.objects.get().state == "pending"


def test_a_mailbox_lists_its_consumers_with_the_number_and_times_of_their_items(client: APIClient) -> None:
    for text in ("one", "two", "three"):
        post_item(client, text)
    first = take(client, consumer="c2", limit=2)
    second = take(client, consumer="c1")

    mailbox = client.get(BOX).json()
    assert [(each["consumer"], each["claimed"]) for each in mailbox["consumers"]] == [("c2", 2), ("c1", 1)]
    assert mailbox["consumers"][0]["until"] == first["leased_until"]
    assert mailbox["consumers"][0]["since"] < mailbox["consumers"][0]["until"]
    items = {item["text"]: item for item in client.get(f"{BOX}items/").json()["results"]}
    assert [items[text]["batch"] for text in ("one", "two", "three")] == [
        first["batch_id"], first["batch_id"], second["batch_id"]
    ]  # fmt: skip
    assert all(item["attempts"] == 1 and item["claimed_at"] for item in items.values())

    end_batch(client, first, "completed", result=None)
    assert [each["consumer"] for each in client.get(BOX).json()["consumers"]] == ["c1"]
