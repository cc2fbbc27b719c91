"""Outputs: written to a spool in PostgreSQL together with their result, moved to MongoDB later, and read from either.

MongoDB may be down, slow or empty without any effect on the state of work: the row stays in the spool until a majority has journalled the
copy. Copying twice is harmless, because the document's `_id` is the run's id.
"""

from __future__ import annotations

import atexit
import logging
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import TYPE_CHECKING, Any
from uuid import UUID

import orjson
from django.conf import settings
from django.db import transaction
from django.db.models.functions import Now

from activities.exceptions import OutputTooLarge, OutputUnavailable
from activities.models import OutputSpool
from agents.contracts import Output
from tenants import tracing, wire_json
from tenants.context import SYSTEM, system_scope, tenant_scope
from tenants.identifiers import uuid7
from tenants.lazy_import import lazy_import

if TYPE_CHECKING:
    import pymongo
    from pymongo import errors as mongodb
    from pymongo.collection import Collection
else:
    pymongo, mongodb = lazy_import("pymongo"), lazy_import("pymongo.errors")

logger = logging.getLogger(__name__)

#: The collections in MongoDB.
OUTPUTS, RUN_LOGS = "outputs", "run_logs"
_FACTS = {"db.system.name": "mongodb", "db.collection.name": OUTPUTS}
COPIED_AT_ONCE = 200
# Outputs stay in the spool for this time, because the statement that claims the next step reads its input from there.
SPOOLED_FOR = timedelta(seconds=15)
READ_SECONDS = 5.0  # a whole read including retries, because a caller waits and a server may be frozen
TIMEOUT_MS = 2_000  # of server selection: the longest wait for a MongoDB that is down


@dataclass(frozen=True, slots=True)
class StoredOutput:
    """One output, as the API returns it."""

    id: UUID
    content: str | None
    data: Any
    content_type: str
    created_at: datetime


def output_of(value: Mapping[str, Any]) -> Output:
    """Return the output in a validated body from a callback or a person."""
    return Output(
        content=value.get("content"),
        data=value.get("data"),
        content_type=value.get("content_type") or "text/markdown",
    )


def refuse_too_large(output: Output) -> None:
    """Raise `OutputTooLarge` if an output of an agent or a person is larger than allowed."""
    size = len((output.content or "").encode()) + len(orjson.dumps(output.data))
    if size > settings.ORCHESTRATOR_MAX_OUTPUT_BYTES:
        raise OutputTooLarge(
            f"The output has {size} bytes; {settings.ORCHESTRATOR_MAX_OUTPUT_BYTES} are allowed."
        )


def store(tenant_id: UUID, activity_id: UUID, output: Mapping[str, Any]) -> UUID:
    """Store a person's output, a validated body, in the caller's transaction. Returns its id. Raises `OutputTooLarge`."""
    value = output_of(output)
    refuse_too_large(value)
    row = OutputSpool.objects.create(
        pk=uuid7(),
        tenant_id=tenant_id,
        activity_id=activity_id,
        content=value.content,
        data=value.data,
        content_type=value.content_type,
    )
    return row.pk


def read(tenant_id: UUID, output_id: UUID) -> StoredOutput | None:
    """Return an output of this tenant, or None. Raises `OutputUnavailable` if MongoDB does not answer.

    Do not call it inside a transaction, because MongoDB may be slow.
    """
    return read_many(tenant_id, {output_id}).get(output_id)


def read_many(tenant_id: UUID, output_ids: AbstractSet[UUID]) -> dict[UUID, StoredOutput]:
    """Return the outputs that exist, by id, with at most two queries. See `read`."""
    with tenant_scope(tenant_id):
        outputs = read_spooled(tenant_id, output_ids)
    missing = {str(output_id) for output_id in output_ids if output_id not in outputs}
    if missing:
        outputs |= {output.id: output for output in _read_from_mongodb(tenant_id, sorted(missing))}
    return outputs


def read_spooled(tenant_id: UUID, output_ids: AbstractSet[UUID]) -> dict[UUID, StoredOutput]:
    """Return the outputs that are still in the spool, by id. In the caller's `tenant_scope`."""
    rows = OutputSpool.objects.for_tenant(tenant_id).filter(pk__in=output_ids)
    return {
        row.pk: StoredOutput(
            row.pk, row.content, wire_json.narrow(row.data), row.content_type, row.created_at
        )
        for row in rows
    }


def _read_from_mongodb(tenant_id: UUID, ids: Sequence[str]) -> list[StoredOutput]:
    try:
        with tracing.part("mongodb find", tracing.CLIENT, **_FACTS), pymongo.timeout(READ_SECONDS):
            documents = list(collection().find({"_id": {"$in": ids}, "tenant_id": str(tenant_id)}))
    except mongodb.PyMongoError as error:
        raise OutputUnavailable("The store of outputs does not answer; try again in a moment.") from error
    return [_from_document(document) for document in documents]


def copy_waiting(limit: int = COPIED_AT_ONCE, *, older_than: timedelta = timedelta(0)) -> int:
    """Move outputs of all tenants to MongoDB, oldest runs first; returns how many. Raises `PyMongoError` if MongoDB is down."""
    with system_scope(), transaction.atomic(using=SYSTEM):
        # Ordered by id, which follows time, because an index on the time would cost a write for each output.
        waiting = OutputSpool.objects.filter(created_at__lte=Now() - older_than).order_by("pk")
        rows = list(waiting.select_for_update(skip_locked=True)[:limit])
        ids = [row.pk for row in rows]
    if not rows:
        return 0
    # Outside of a transaction. Two copiers may write the same documents and delete the same rows, which is harmless.
    collection().bulk_write(
        [pymongo.ReplaceOne({"_id": str(row.pk)}, _to_document(row), upsert=True) for row in rows],
        ordered=False,
    )
    with system_scope():
        OutputSpool.objects.filter(pk__in=ids).delete()
    _index_by_tenant(settings.MONGODB_URI)
    return len(rows)


@cache
def _index_by_tenant(uri: str) -> None:
    """Index outputs and logs for exports and deletions of a whole tenant, once in each process, so that nobody has to set it up.

    Copying never depends on it. Among very many documents it may take longer than a client waits: then a warning says so, and
    exports and deletions are only slower.
    """
    for name in (OUTPUTS, RUN_LOGS):
        try:
            collection().database[name].create_index("tenant_id", name=f"{name}_of_tenant")
        except mongodb.PyMongoError as error:
            facts = {"action": "output_index_unknown", "collection": name, "reason": type(error).__name__}
            logger.warning("The index by tenant is not known to exist yet", extra=facts)


def _to_document(row: OutputSpool) -> dict[str, Any]:
    return {
        "_id": str(row.pk),
        "tenant_id": str(row.tenant_id),
        "activity_id": str(row.activity_id),
        "content": row.content,
        # As text, so that keys with "$" or "." and large integers are returned unchanged.
        "data": None if row.data is None else wire_json.dumps_stored(row.data).decode(),
        "content_type": row.content_type,
        "created_at": row.created_at,
    }


def _from_document(document: dict[str, Any]) -> StoredOutput:
    created_at = document["created_at"]
    return StoredOutput(
        id=UUID(document["_id"]),
        content=document["content"],
        data=None if document["data"] is None else orjson.loads(document["data"]),
        content_type=document["content_type"],
        created_at=created_at if created_at.tzinfo else created_at.replace(tzinfo=UTC),
    )


def collection() -> Collection[dict[str, Any]]:
    return (
        _client(settings.MONGODB_URI)
        .get_default_database(default="orchestrator")[OUTPUTS]
        .with_options(write_concern=pymongo.WriteConcern(w="majority", j=True))
    )


@cache
def _client(uri: str) -> pymongo.MongoClient[dict[str, Any]]:
    client: pymongo.MongoClient[dict[str, Any]] = pymongo.MongoClient(
        uri,
        serverSelectionTimeoutMS=TIMEOUT_MS,
        connectTimeoutMS=TIMEOUT_MS,
        socketTimeoutMS=10_000,
        connect=False,
    )
    atexit.register(client.close)  # so that its sessions on the server end with the process
    return client
