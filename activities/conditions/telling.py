"""Telling: what was noticed is compared with what people know already, and they are told of the difference."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any
from uuid import UUID

from django.db import transaction
from psycopg.types.json import Jsonb

from activities.alerts.raising import LONGEST_TITLE, raise_alert
from activities.conditions.noticing import Noticed
from activities.models import Condition
from activities.models.alert import AlertKind, Severity
from tenants.context import SYSTEM, system_scope
from tenants.models import Tenant
from tenants.sql import Statement

logger = logging.getLogger(__name__)

_FOLDER = Path(__file__).resolve().parent.parent / "sql" / "conditions"
_BEGIN, _END = (Statement.load(_FOLDER, name) for name in ("begin", "end"))
LONGEST_NAME = 400


def follow(kind: AlertKind, noticed: Sequence[Noticed]) -> int:
    """Tell of each that has begun, and of each of this kind that is over; how many this told of.

    Any number of processes may do it at once.
    """
    now = {f"{kind.value}:{found.subject}"[:LONGEST_NAME]: found for found in noticed}
    with system_scope():
        known = set(Condition.objects.filter(kind=kind.value).values_list("name", flat=True))
    begun = [_begin(name, kind, now[name]) for name in sorted(now.keys() - known)]
    over = [_end(name) for name in sorted(known - now.keys())]
    return sum(begun) + sum(over)


def _begin(name: str, kind: AlertKind, found: Noticed) -> bool:
    tenants = list(found.tenants())
    row = {
        "name": name,
        "kind": kind.value,
        "over": found.over[:LONGEST_TITLE],
        "facts": Jsonb(dict(found.facts)),
        "tenants": Jsonb([str(tenant) for tenant in tenants]),
    }
    with system_scope(), transaction.atomic(using=SYSTEM):
        rows = _BEGIN.run(row, using=SYSTEM)
        for begun in rows:
            key = f"condition:{begun.id}:began"
            _tell(
                tenants,
                kind,
                found.title,
                key=key,
                body=found.body,
                severity=found.severity,
                facts=found.facts,
            )
            logger.warning(
                "Condition began",
                extra={"action": "condition_began", "condition": name, "tenants": len(tenants)},
            )
    return bool(rows)


def _end(name: str) -> bool:
    with system_scope(), transaction.atomic(using=SYSTEM):
        rows = _END.run({"name": name}, using=SYSTEM)
        for ended in rows:
            tenants = map(UUID, ended.tenants)
            key = f"condition:{ended.id}:over"
            _tell(
                tenants, AlertKind(ended.kind), ended.over, key=key, severity=Severity.INFO, facts=ended.facts
            )
            logger.info("Condition over", extra={"action": "condition_over", "condition": name})
    return bool(rows)


def _tell(
    tenants: Iterable[UUID], kind: AlertKind, title: str, *, key: str, severity: Severity, facts: Mapping[str, Any], body: str = ""
) -> None:  # fmt: skip
    """Every tenant that is concerned and still there, and the platform's channels once."""
    present = Tenant.objects.filter(pk__in=list(tenants)).order_by("pk").values_list("pk", flat=True)
    for number, tenant_id in enumerate(present):
        raise_alert(
            tenant_id, kind, title, body=body, severity=severity, facts=facts, dedup_key=key, platform=number == 0
        )  # fmt: skip
