"""The compiler of the ORM builds the same SQL as Django's, whether it knows the columns of a model or not."""

from __future__ import annotations

from typing import Any

from django.apps import apps
from django.db import connections
from django.db.backends.postgresql import compiler as djangos
from django.db.models import Count, Exists, F, OuterRef

from tenants.context import APP
from tests.cases import in_one_test

MODELS = [model for model in apps.get_models() if not model._meta.proxy]


def compiled(kind: type[Any], query: Any) -> tuple[Any, ...]:
    """Return the statement, and what the ORM needs to read its rows."""
    compiler = kind(query.clone(), connections[APP], APP)
    statement = compiler.as_sql(with_col_aliases=True), compiler.as_sql()
    columns = [column for column, _, _ in compiler.select]
    own = compiler.klass_info and (compiler.klass_info["model"], compiler.klass_info["select_fields"])
    return statement, columns, own, compiler.annotation_col_map, compiler.get_converters(columns)


@in_one_test("model", MODELS, ids=lambda model: model._meta.label)
def test_statements_are_the_same_as_those_of_django(model: Any) -> None:
    rows, last = model._base_manager.using(APP), model._meta.concrete_fields[-1].name
    inner = rows.filter(pk=OuterRef("pk"))
    renamed = rows.order_by("pk")
    renamed.query.get_initial_alias()
    renamed.query.bump_prefix(rows.query)
    queries = {
        "rows": rows.filter(pk=model._meta.pk.to_python(None))
        .exclude(**{f"{last}__isnull": True})
        .order_by("-pk", last),
        "one column": rows.only(last),
        "without a column": rows.defer(last),
        "values": rows.values("pk", last),
        "with others": rows.select_related(),
        "annotated": rows.annotate(same=F("pk")),
        "grouped": rows.values(last).annotate(number=Count("pk")),
        "with a subquery": rows.filter(Exists(inner), pk__in=rows.values("pk")),
        "added up": rows.order_by("pk").union(rows.only("pk")),
        "with other text": rows.extra(select={"one": "1"}),
        "of another name": renamed,
        "distinct": rows.distinct().order_by(last),
    }
    kind = connections[APP].ops.compiler("SQLCompiler")
    assert kind is not djangos.SQLCompiler

    for _ in range(2):
        for name, each in queries.items():
            assert compiled(kind, each.query) == compiled(djangos.SQLCompiler, each.query), name
