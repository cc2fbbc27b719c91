"""Adding an entry: in the transaction that is open, through the role that it works under.

Whoever adds an entry holds its chain until the transaction ends, so it is the last thing that a transaction does: others of the tenant wait
only for the commit.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any
from uuid import UUID

import orjson
from django.db import transaction

from tenants.audit import origin
from tenants.audit.actors import Actor, actor_of, of_command
from tenants.audit.redaction import one_line
from tenants.context import APP, tenant_scope
from tenants.identifiers import uuid7
from tenants.principals import Principal
from tenants.sql import Statement

APPEND = Statement.load(Path(__file__).resolve().parent.parent / "sql" / "audit", "append")


def record_command(
    command: str,
    *,
    tenant_id: UUID | None = None,
    about: tuple[str, object] = ("", ""),
    detail: Mapping[str, Any] | None = None,
) -> None:
    """Add the entry of a management command that changed something, in the transaction that is open or in one of its own."""
    with transaction.atomic(using=APP) if tenant_id is None else tenant_scope(tenant_id):
        record(
            f"manage.py {command}", actor=of_command(command), tenant_id=tenant_id, about=about, detail=detail
        )


def record_action(
    who: Principal,
    operation: str,
    *,
    about: tuple[str, object],
    changes: Mapping[str, Any] | None = None,
    detail: Mapping[str, Any] | None = None,
    outcome: str = "done",
) -> None:
    """Record an action of `who` in the tenant they act for, marked with their break-glass access if they use one. Otherwise as `record`."""
    glass: dict[UUID | None, UUID] = {who.tenant_id: who.break_glass_id} if who.break_glass_id else {}
    with origin.through_glass(glass):
        record(
            operation, actor=actor_of(who), tenant_id=who.tenant_id, about=about, changes=changes, detail=detail,
            outcome=outcome,
        )  # fmt: skip


def record(
    operation: str,
    *,
    actor: Actor,
    tenant_id: UUID | None = None,
    about: tuple[str, object] = ("", ""),
    changes: Mapping[str, Any] | None = None,
    detail: Mapping[str, Any] | None = None,
    outcome: str = "done",
) -> None:
    """Add one entry. `about` is the kind and the id of the object; without a tenant it goes to the chain of the platform.

    `changes` and `detail` must have gone through `changes.between` or `redaction`. For a tenant's entry its scope, or one that may
    write its rows, must be open.
    """
    source = origin.current()
    APPEND.run(
        {
            "id": uuid7(),
            "tenant_id": tenant_id,
            "actor_kind": actor.kind[:16],
            "actor_id": one_line(actor.id, 100),
            "actor_name": one_line(actor.name),
            "operation": one_line(operation),
            "outcome": outcome,
            "object_kind": one_line(about[0], 100),
            "object_id": one_line(about[1]),
            "changes": orjson.dumps(changes or {}, default=str).decode(),
            "detail": orjson.dumps(detail or {}, default=str).decode(),
            "request_id": source.request_id,
            "ip": source.ip,
            "break_glass_id": source.glass_of(tenant_id),
        }
    )
