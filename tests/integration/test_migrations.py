"""The tables that migrations created match the models."""

from __future__ import annotations

from typing import Any

import pytest
from django.apps import apps
from django.db import connections, models
from django.db.migrations.state import ModelState, ProjectState

from orchestrator.management.commands.migrate import find_affected_models
from tenants.context import OWNER

OURS = ("activities", "agents", "pipelines", "tenants")


def _tables() -> list[type[models.Model]]:
    return [
        model for label in OURS for model in apps.get_app_config(label).get_models() if model._meta.managed
    ]


@pytest.fixture
def owner(django_db_setup: None, django_db_blocker: Any) -> Any:
    with django_db_blocker.unblock():
        yield connections[OWNER]


@pytest.mark.parametrize("model", _tables(), ids=lambda model: model._meta.label)
def test_a_table_has_the_columns_keys_and_indexes_of_its_model(model: type[models.Model], owner: Any) -> None:
    meta = model._meta
    with owner.cursor() as cursor:
        cursor.execute(
            "SELECT attname, format_type(atttypid, NULL), NOT attnotnull FROM pg_attribute"
            " WHERE attrelid = %s::regclass AND attnum > 0 AND NOT attisdropped",
            [meta.db_table],
        )
        columns = {name: (kind, null) for name, kind, null in cursor.fetchall()}
        cursor.execute(
            "SELECT format_type(t.oid, NULL) FROM unnest(%s::text[]) WITH ORDINALITY AS w(name, place),"
            " LATERAL (SELECT to_regtype(regexp_replace(name, '\\(.*\\)', ''))::oid) AS t(oid) ORDER BY place",
            [[str(field.db_type(owner)) for field in meta.local_concrete_fields]],
        )
        kinds = [row[0] for row in cursor.fetchall()]
        constraints = owner.introspection.get_constraints(cursor, meta.db_table)

    fields = meta.local_concrete_fields
    assert columns == {field.column: (kind, field.null) for field, kind in zip(fields, kinds, strict=True)}
    names = {each.name for each in (*meta.indexes, *meta.constraints)}
    assert names <= constraints.keys()
    keys = {
        tuple(constraint["columns"]): constraint["foreign_key"]
        for constraint in constraints.values()
        if constraint["foreign_key"]
    }
    for field in fields:
        if isinstance(field, models.ForeignKey) and field.db_constraint:
            target = field.target_field
            assert keys[(field.column,)] == (target.model._meta.db_table, target.column)


def _state(**to: list[str]) -> ProjectState:
    """Models of one app, each with relations to others."""
    state = ProjectState()
    for name, others in to.items():
        relations = [(f"to_{other}", models.ForeignKey(f"a.{other}", models.CASCADE)) for other in others]
        state.add_model(ModelState("a", name, [("id", models.AutoField(primary_key=True)), *relations]))
    return state


def test_a_changed_model_and_those_that_refer_to_it_are_rendered_again() -> None:
    state = _state(tenant=[], work=["tenant"], run=["work", "tenant"], other=["tenant"], call=["run"])
    state.add_model(ModelState("a", "Subclass", [], bases=("a.Run",)))

    def affected(name: str, **delay: bool) -> set[str]:
        return {model for _, model in find_affected_models(state, "a", name, **delay)}

    assert affected("other") == {"other"}
    assert affected("work") == {"work", "run", "call", "subclass"}
    assert affected("work", delay=True) == {"work", "run"}
    assert affected("tenant") == {"tenant", "work", "run", "other", "call", "subclass"}
