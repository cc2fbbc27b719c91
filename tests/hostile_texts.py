"""Hostile texts of agents or tenants, and a way to write them into every column of the database."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from itertools import count
from typing import Any
from uuid import uuid4

from django.contrib import admin
from django.db import DatabaseError, connections, models, transaction
from django.utils import timezone

from tenants.context import OWNER

HOSTILE_HOST = "evil.example"
SCRIPT = f"window.__xss=1;alert(1);new Image().src='//{HOSTILE_HOST}/x'"
#: Each fits into a column of a hundred characters.
SHORT = (
    "<script>window.__xss=1;alert(1)</script>",
    '"><svg/onload=window.__xss=1>',
    "'><img src=x onerror=window.__xss=1>",
    f"<img src=//{HOSTILE_HOST}/p.png>",
    "javascript:window.__xss=1",
    f"[a](javascript:alert(1)) ![p](https://{HOSTILE_HOST}/q.png)",
    "{{ settings.SECRET_KEY }}{% debug %}${window.__xss=1}",
    '" x-data x-init="window.__xss=1" autofocus onfocus="window.__xss=1',
    "\u202egnp.exe\u202c\u2066\u200f<b>",
    "</script><script>window.__xss=1</script>",
    "</textarea></pre></style><script>window.__xss=1</script>",
    f'https://{HOSTILE_HOST}/"onmouseover=window.__xss=1',
    "'-(window.__xss=1)-'",
    f"<iframe src=//{HOSTILE_HOST}></iframe><base href=//{HOSTILE_HOST}>",
    f"<link rel=stylesheet href=//{HOSTILE_HOST}/s.css><meta http-equiv=refresh content=0;url=//{HOSTILE_HOST}>",
    f"<a href=javascript:alert(1)>a</a><form action=//{HOSTILE_HOST}>",
    "&lt;script&gt;window.__xss=1&lt;/script&gt;<!--",
)
LONG = "\n".join((*SHORT, f"<script>{SCRIPT}</script>", f'<img src=x onerror="{SCRIPT}">'))
LINE = "<b>" + "x" * 600_000  # almost as long as an output may be


# Values for programs. With other values pages would display only errors.
_KEPT = frozenset(
    (
        "password", "auth_sealed", "target_sealed", "signing_sealed", "secret_sealed", "state", "status", "task", "username", "fields",
        "args", "kwargs", "decision_rules", "provider", "timezone", "catch_up", "retry",
    )
)  # fmt: skip
_VALUES: dict[type[models.Field[Any, Any]], Any] = {
    models.JSONField: {},
    models.DateTimeField: timezone.now(),
    models.DateField: timezone.now().date(),
    models.DurationField: timedelta(1),
    models.UUIDField: uuid4(),
    models.BooleanField: False,
    models.BinaryField: b"x",
    models.GenericIPAddressField: "127.0.0.1",
}
_RESTORED = ("agents_agent", "agents_agentversiondeployment")  # with rows of migrations, which all tests need


@contextmanager
def write_everywhere() -> Iterator[dict[str, set[str]]]:
    """Write hostile text into every text column of every table of the admin; yield the changed columns by table.

    Columns with constraints in the database, such as states and keys, refuse it and keep their values.
    """
    admin.autodiscover()  # because otherwise the first request of the process would
    admin_models = [
        model for model in admin.site._registry if model._meta.app_label not in ("auth", "contenttypes")
    ]
    with connections[OWNER].cursor() as cursor:
        # Because histories cannot be changed otherwise.
        cursor.execute("SET session_replication_role = replica")
        for table in _RESTORED:
            cursor.execute(f"CREATE TEMP TABLE kept_{table} AS SELECT * FROM {table}")
        try:
            numbers = count()
            for model in admin_models:
                _create_if_empty(model)
            yield {
                model._meta.db_table: {
                    field.column for field in _free_texts(model) if _write(cursor, model, field, numbers)
                }
                for model in admin_models
            }
        finally:
            for table in reversed(_RESTORED):
                cursor.execute(f"DELETE FROM {table}")
            for table in _RESTORED:
                cursor.execute(f"INSERT INTO {table} SELECT * FROM kept_{table}")
                cursor.execute(f"DROP TABLE kept_{table}")
            cursor.execute("SET session_replication_role = origin")


def _create_if_empty(model: type[models.Model]) -> None:
    """Create a row if the table is empty and the database accepts one."""
    rows = model._base_manager.using(OWNER)
    if rows.exists():
        return
    row = model()
    for each in model._meta.concrete_fields:
        if each.auto_created or each.has_default() or each.null:
            continue
        setattr(row, each.attname, _value_for(each))
    try:
        with transaction.atomic(using=OWNER):
            rows.bulk_create([row])
    except DatabaseError:
        pass


def _value_for(each: models.Field[Any, Any]) -> Any:
    if isinstance(each, models.ForeignKey):
        return each.related_model._base_manager.using(OWNER).values_list("pk", flat=True).first()
    if each.choices:
        return each.choices[0][0]
    if each.name == "provider":
        return "adapter|place"
    return next(
        (value for kind, value in _VALUES.items() if isinstance(each, kind)),
        "x" if each.empty_strings_allowed else 1,
    )


def _free_texts(model: type[models.Model]) -> Iterator[models.Field[Any, Any]]:
    for field in model._meta.concrete_fields:
        is_text = isinstance(field, models.CharField | models.TextField | models.JSONField)
        if is_text and not (field.primary_key or field.is_relation or field.choices or field.name in _KEPT):
            yield field


def _write(
    cursor: Any, model: type[models.Model], field: models.Field[Any, Any], numbers: Iterator[int]
) -> bool:
    table, column = model._meta.db_table, field.column
    try:
        with transaction.atomic(using=OWNER):
            if not isinstance(field, models.JSONField):
                text = SHORT[next(numbers) % len(SHORT)][: field.max_length] if field.max_length else LONG
                cursor.execute(f'UPDATE "{table}" SET "{column}" = %s', [text])
                return bool(cursor.rowcount)
            cursor.execute(f'SELECT DISTINCT "{column}"::text FROM "{table}" WHERE "{column}" IS NOT NULL')
            values = [value for (value,) in cursor.fetchall()]
            for value in values:
                cursor.execute(
                    f'UPDATE "{table}" SET "{column}" = %s::jsonb WHERE "{column}"::text = %s',
                    [json.dumps(_make_hostile(json.loads(value), numbers)), value],
                )
            return bool(values)
    except DatabaseError:
        return False


def _make_hostile(value: Any, numbers: Iterator[int]) -> Any:
    """Return the same structure with hostile texts."""
    hostile = SHORT[next(numbers) % len(SHORT)]
    if isinstance(value, dict):
        return {key: _make_hostile(each, numbers) for key, each in value.items()} | {hostile: LONG}
    if isinstance(value, list):
        return [_make_hostile(each, numbers) for each in value]
    return hostile if isinstance(value, str) else value
