"""Foreign keys point downwards only, and every row of a tenant is isolated twice: by a policy, and by keys with the tenant."""

from __future__ import annotations

import re
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest
from django.apps import apps
from django.db import models
from django.db.migrations.loader import MigrationLoader

from activities import states
from tenants.row_security import IsolateTenant, TenantKey, tenant_tables
from tests.architecture import tree

RANK = {app: rank for rank, app in enumerate(reversed(tree.APPS))}

#: Keys to Django's own tables of people.
BELOW_EVERYTHING = {"auth", "contenttypes", "sessions", "django_celery_beat", "django_celery_results"}


def _keys() -> list[models.ForeignKey]:
    """Return every foreign key of our tables."""
    return [
        field
        for model in apps.get_models()
        if model._meta.app_label in RANK
        for field in model._meta.concrete_fields
        if isinstance(field, models.ForeignKey)
    ]


@cache
def _operations() -> tuple[object, ...]:
    """Return every operation of our migrations, as written."""
    migrations = MigrationLoader(None).disk_migrations
    return tuple(
        step for (app, _), migration in migrations.items() if app in RANK for step in migration.operations
    )


def _sql_of(kind: type) -> list[str]:
    """Return the SQL of the operations of one kind, each as one text."""
    statements = [step.sql for step in _operations() if isinstance(step, kind)]
    return [text if isinstance(text, str) else "; ".join(map(str, text)) for text in statements]


def test_foreign_keys_point_downwards() -> None:
    upwards = [
        f"{key.model.__name__}.{key.name} -> {key.related_model._meta.label}"
        for key in _keys()
        if key.related_model._meta.app_label not in BELOW_EVERYTHING
        and RANK[key.related_model._meta.app_label] > RANK[key.model._meta.app_label]
    ]

    assert upwards == []


def test_every_table_of_tenants_has_a_forced_policy() -> None:
    isolated = {
        match[1]
        for text in _sql_of(IsolateTenant)
        if (match := re.search(r"CREATE POLICY \w+ ON (\w+)", text))
    }

    assert set(tenant_tables()) == isolated


def test_keys_between_rows_of_tenants_carry_the_tenant() -> None:
    key_of = re.compile(r"ALTER TABLE (\w+) .*\(tenant_id, (\w+)\) REF")
    carried = {match.group(1, 2) for text in _sql_of(TenantKey) if (match := key_of.search(text))}
    between = {
        (key.model._meta.db_table, key.column)
        for key in _keys()
        if _belongs_to_a_tenant(key.model) and _belongs_to_a_tenant(key.related_model)
    }

    assert between <= carried


def test_rows_of_tenants_have_no_plain_foreign_keys_between_them() -> None:
    """PostgreSQL checks plain keys without policies: they would disclose to one tenant which rows another has."""
    plain = [
        f"{key.model.__name__}.{key.name}"
        for key in _keys()
        if _belongs_to_a_tenant(key.related_model) and key.db_constraint
    ]

    assert plain == []


def test_values_that_tenants_choose_are_unique_per_tenant() -> None:
    """A value that is unique over all tenants would disclose what others have chosen."""
    chosen = (models.CharField, models.TextField, models.SlugField)
    disclosing = [
        f"{model.__name__}: {constraint.name}"
        for model in apps.get_models()
        if model._meta.app_label in RANK and _belongs_to_a_tenant(model)
        for constraint in model._meta.constraints
        if isinstance(constraint, models.UniqueConstraint)
        and constraint.fields
        and all(isinstance(model._meta.get_field(name), chosen) for name in constraint.fields)
    ]

    assert disclosing == []


@pytest.mark.parametrize("app", tree.APPS)
def test_the_numbers_of_migrations_have_no_gap(app: str) -> None:
    numbers = sorted(int(path.name[:4]) for path in Path(tree.ROOT / app / "migrations").glob("[0-9]*.py"))

    assert all(later == earlier + 1 for earlier, later in pairwise(numbers))


def test_the_database_guard_agrees_with_the_state_table() -> None:
    text = "\n".join(states.install_status_guard())

    assert set(re.findall(r"'(\w+)>(\w+)'", text)) == states.pairs()


def _belongs_to_a_tenant(model: type[models.Model]) -> bool:
    return any(field.name == "tenant" for field in model._meta.concrete_fields)
