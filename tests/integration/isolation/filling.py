"""Creates a row in every table of a tenant from Django's models, so that new tables are filled as well."""

from __future__ import annotations

from datetime import timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

from django.apps import apps
from django.db import models, transaction
from django.utils import timezone

from tenants.context import APP, tenant_scope
from tenants.identifiers import uuid7


def tenant_models() -> list[type[models.Model]]:
    return [
        model
        for model in apps.get_models()
        if any(each.name == "tenant" for each in model._meta.concrete_fields)
    ]


def fill(tenant_id: UUID, word: str, canary: str) -> None:
    """Create a row in each empty table of the tenant, with the words in its texts. Parents come before their children."""
    empty = [model for model in tenant_models() if not _first_row(model, tenant_id)]
    for _ in range(3):
        empty = [model for model in empty if not _create_row(model, tenant_id, word, canary)]


def _first_row(model: Any, tenant_id: UUID) -> Any:
    with tenant_scope(tenant_id):
        return model._default_manager.filter(tenant_id=tenant_id).first()


def _create_row(model: Any, tenant_id: UUID, word: str, canary: str) -> bool:
    with tenant_scope(tenant_id):
        values: dict[str, Any] = {"tenant_id": tenant_id}
        for each in model._meta.concrete_fields:
            if each.name == "tenant" or each.auto_created:
                continue
            value = _value(each, tenant_id, word, canary)
            if value is not None:
                values[each.attname] = value
        try:
            with transaction.atomic(using=APP):
                model._default_manager.create(**values)
        except Exception:  # noqa: BLE001 - a parent is missing, or a rule of the table failed; the test of the catalogue names the table
            return False
    return True


def _value(each: Any, tenant_id: UUID, word: str, canary: str) -> Any:
    """Return the value of a field, or None to use its default."""
    if each.is_relation:
        parent = each.related_model
        owned = any(other.name == "tenant" for other in parent._meta.concrete_fields)
        parent_row = parent._default_manager.filter(**({"tenant_id": tenant_id} if owned else {})).first()
        return getattr(parent_row, each.target_field.attname) if parent_row else None
    if isinstance(each, models.AutoField | models.BooleanField):
        return None
    if isinstance(each, models.CharField | models.TextField):
        if each.choices:
            return None if _has_default(each) else each.choices[0][0]
        long = f"{canary} {word}" if isinstance(each, models.TextField) or each.max_length > 100 else word
        return None if each.null else long[: each.max_length or None]
    if _has_default(each) or each.null:
        return None
    plain: dict[type[Any], Any] = {
        models.UUIDField: uuid7(),
        models.JSONField: {"note": canary},
        models.DateTimeField: timezone.now() + timedelta(days=1),
        models.DateField: timezone.now().date(),
        models.DecimalField: Decimal(1),
        models.IntegerField: 1,
        models.FloatField: 1.0,
        models.BinaryField: canary.encode(),
    }
    return next((value for kind, value in plain.items() if isinstance(each, kind)), None)


def _has_default(each: Any) -> bool:
    return each.has_default() or each.has_db_default()
