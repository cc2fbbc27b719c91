"""The kinds of this app: answers kept for idempotency, and the ledger."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from uuid import UUID

from tenants.retention.kinds import Kind, register
from tenants.retention.rows import Rows
from tenants.sql import Statement

_FOLDER = Path(__file__).parent / "sql"
_FORGET_USAGE = Statement.load(_FOLDER, "forget_usage")

_KEYS = Rows("tenants_idempotentrequest", _FOLDER, "idempotency_keys")
_USAGE = Rows("tenants_usageentry", _FOLDER, "usage")


def connect() -> None:
    register(
        Kind("idempotency_keys", "Answers kept for Idempotency-Key", _KEYS.portion, _KEYS.count),
        Kind("usage", "Entries of the ledger; their totals by month stay", _forget_usage, _USAGE.count),
    )


def _forget_usage(tenant_id: UUID, before: datetime, most: int) -> int:
    found = _FORGET_USAGE.run({"tenant": tenant_id, "before": before, "most": most})
    return int(found[0].deleted)
