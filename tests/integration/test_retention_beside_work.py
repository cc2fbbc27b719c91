"""Retention of bulk jobs, mailboxes and batches of providers, none of which delays the deletion of activities."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from activities import bulk_jobs, dead_letters
from activities.mailboxes import consumer, producer
from activities.mailboxes.consumer import TakeOptions
from activities.mailboxes.producer import NewItem
from activities.models import (
    BatchItem,
    BulkItem,
    BulkJob,
    DeadLetter,
    Mailbox,
    MailboxBatch,
    MailboxItem,
    ProviderBatch,
    Subagent,
)
from activities.models.batch import BatchState, ItemState
from tenants import tokens
from tenants.context import tenant_scope
from tenants.models import Role, Tenant
from tenants.principals import Principal
from tenants.retention import all_kinds
from tests.engine import Engine
from tests.integration.test_retention import LONG, age, age_work, done, purge


def count_rows(tenant: Tenant, model: Any, **which: Any) -> int:
    with tenant_scope(tenant.pk):
        return int(model.objects.filter(**which).count())


def count_old(tenant: Tenant, kind: str) -> int:
    with tenant_scope(tenant.pk):
        return all_kinds()[kind].count(tenant.pk, datetime.now(UTC) - timedelta(days=90))


def bulk_job(tenant: Tenant, ids: list[UUID]) -> UUID:
    with tenant_scope(tenant.pk):
        token, _ = tokens.create(tenant, "operator", "test")
        job = bulk_jobs.start(
            tenant.pk,
            "priority",
            ids,
            expected=len(ids),
            filter={},
            arguments={"priority": 1},
            creator=Principal(tenant.pk, tenant.slug, Role.OPERATOR, "token:test", token_id=token.pk),
        )
    return UUID(str(job.pk))


def test_an_ended_bulk_job_is_deleted_with_its_items_and_an_active_one_is_kept(
    engine: Engine, acme: Tenant
) -> None:
    ids = done(engine, acme, 3)
    old = bulk_job(acme, ids)
    bulk_jobs.work()
    running = bulk_job(acme, ids)
    age("activities_bulkjob", [old, running], "created_at", "finished_at")

    assert count_old(acme, "bulk_jobs") == 3 + 1
    assert purge(acme, "bulk_jobs") == 3 + 1
    assert count_rows(acme, BulkJob) == count_rows(acme, BulkJob, pk=running) == 1
    assert count_rows(acme, BulkItem) == count_rows(acme, BulkItem, job_id=running) == 3


def take(tenant: Tenant, key: str) -> consumer.TakenBatch:
    options = TakeOptions(consumer="c1", lease=timedelta(minutes=5), window=timedelta(0), limit=10)
    batch = consumer.take(tenant.pk, key, options)
    assert batch is not None
    return batch


def post(tenant: Tenant, key: str, **fields: Any) -> MailboxItem:
    with tenant_scope(tenant.pk):
        return producer.post(tenant.pk, key, NewItem(text="hello", **fields), actor="test").item


def test_processed_messages_are_deleted_and_waiting_ones_are_kept_with_their_mailbox(acme: Tenant) -> None:
    done_item, now = post(acme, "session-1"), datetime.now(UTC)
    first = take(acme, "session-1").batch
    with tenant_scope(acme.pk):
        consumer.complete_batch(acme.pk, "session-1", first.pk, result=None, now=now)
    waiting = post(acme, "session-1")
    second = take(acme, "session-1").batch
    with tenant_scope(acme.pk):
        consumer.fail_batch(acme.pk, "session-1", second.pk, error={"message": "x"}, retryable=True, now=now)
    age("activities_mailboxitem", [done_item.pk, waiting.pk], "created_at", "done_at")
    age("activities_mailboxbatch", [first.pk, second.pk], "created_at", "ended_at")

    assert count_old(acme, "mailboxes") == purge(acme, "mailboxes") == 2
    assert count_rows(acme, MailboxItem) == count_rows(acme, MailboxItem, pk=waiting.pk) == 1
    assert count_rows(acme, MailboxBatch) == count_rows(acme, MailboxBatch, pk=second.pk) == 1
    assert count_rows(acme, Mailbox) == 1


def test_a_failed_message_is_kept_until_its_dead_letter_is_closed(acme: Tenant) -> None:
    item = post(acme, "session-1")
    batch = take(acme, "session-1").batch
    with tenant_scope(acme.pk):
        consumer.fail_batch(
            acme.pk, "session-1", batch.pk, error={"message": "x"}, retryable=False, now=datetime.now(UTC)
        )
    age("activities_mailboxitem", [item.pk], "created_at", "done_at")
    assert (count_old(acme, "mailboxes"), purge(acme, "mailboxes")) == (0, 0)

    with tenant_scope(acme.pk):
        dead_letters.dismiss(acme.pk, DeadLetter.objects.for_tenant(acme.pk), actor="ann", reason="old")
    age("activities_mailboxitem", [item.pk], "done_at")

    assert purge(acme, "mailboxes") == 1


def test_a_message_to_an_agent_is_deleted_after_the_activity_that_received_it(
    engine: Engine, acme: Tenant
) -> None:
    item = post(acme, "session-1", agent_role="qa")
    engine.make_due(acme)
    engine.drain()
    with tenant_scope(acme.pk):
        item.refresh_from_db()
    age("activities_mailboxitem", [item.pk], "created_at", "done_at")

    assert (item.state, purge(acme, "mailboxes")) == ("done", 0)
    assert item.activity_id is not None
    age_work([item.activity_id])
    assert (purge(acme, "activities"), purge(acme, "mailboxes")) == (1, 1)
    assert count_rows(acme, MailboxItem) == 0


def test_the_mailbox_of_a_subagent_is_deleted_after_the_subagent(engine: Engine, acme: Tenant) -> None:
    with tenant_scope(acme.pk):
        box = Mailbox.objects.create(tenant_id=acme.pk, key="subagent:1", agent_role="qa")
        other = Mailbox.objects.create(tenant_id=acme.pk, key="session-1", agent_role="qa")
    (activity_id,) = done(engine, acme, mailbox_id=box.pk)
    with tenant_scope(acme.pk):
        Subagent.objects.create(
            tenant_id=acme.pk, activity_id=activity_id, conversation=box, subagent_type="qa", prompt="Go."
        )
    age("activities_mailbox", [box.pk, other.pk], "created_at")

    assert purge(acme, "mailboxes") == 0
    age_work([activity_id])
    assert (purge(acme, "activities"), purge(acme, "mailboxes")) == (1, 1)
    assert count_rows(acme, Mailbox) == count_rows(acme, Mailbox, pk=other.pk) == 1


def provider_batch(tenant: Tenant, activity_id: UUID, state: BatchState) -> ProviderBatch:
    fields = {"agent_role": "qa", "provider": "anthropic|p|1", "model": "m-1"}
    long_ago = datetime.now(UTC) - LONG
    with tenant_scope(tenant.pk):
        batch: ProviderBatch = ProviderBatch.objects.create(
            tenant_id=tenant.pk, **fields, state=state, size=1, ended_at=long_ago if state == BatchState.ENDED else None
        )  # fmt: skip
        BatchItem.objects.create(
            tenant_id=tenant.pk, activity_id=activity_id, run_id=activity_id, fence=1, batch=batch, **fields,
            state=ItemState.MOVED, bytes=1, leave_at=long_ago, closed_at=long_ago,
        )  # fmt: skip
    return batch


def test_a_batch_of_a_provider_is_deleted_once_none_of_its_activities_is_live(
    engine: Engine, acme: Tenant
) -> None:
    (ended,) = done(engine, acme)
    (live,) = engine.submit(acme)
    old, live_batch = (provider_batch(acme, each, BatchState.ENDED) for each in (ended, live))

    assert count_old(acme, "provider_batches") == purge(acme, "provider_batches") == 1
    assert count_rows(acme, ProviderBatch) == count_rows(acme, ProviderBatch, pk=live_batch.pk) == 1
    assert count_rows(acme, BatchItem, batch=old.pk) == 0


def test_bulk_jobs_and_batches_do_not_keep_old_activities(engine: Engine, acme: Tenant) -> None:
    (activity_id,) = done(engine, acme)
    bulk_job(acme, [activity_id])
    provider_batch(acme, activity_id, BatchState.SENT)
    age_work([activity_id])

    assert purge(acme, "activities") == 1
    assert (count_rows(acme, BulkItem), count_rows(acme, BatchItem)) == (0, 0)
    assert (count_rows(acme, BulkJob), count_rows(acme, ProviderBatch)) == (1, 1)
    assert bulk_jobs.work() == 0
    assert count_rows(acme, BulkJob, status="completed") == 1
