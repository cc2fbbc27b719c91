"""Resolves a data source into a query: looks up its names in the catalogue, and converts its values to the fields' types.

The only user input in a query is values. Code that builds SQL, a request or a loop from it takes the names from the
catalogue's table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from operator import ge, gt, le, lt
from typing import Any

from pipelines.data_sources.catalogue import (
    Catalogue,
    FieldType,
    InvalidValue,
    Table,
    Typed,
    from_json,
    from_text,
)
from pipelines.data_sources.shapes import (
    ORDERED,
    Condition,
    DataSource,
    DataSourceError,
    InputError,
    Operator,
    Options,
    Scalar,
    Source,
)
from pipelines.definition.errors import explain_unknown


@dataclass(frozen=True, slots=True)
class Comparison:
    """A condition with values of its field's type."""

    field: str
    operator: Operator
    value: Typed | tuple[Typed, ...]


@dataclass(frozen=True, slots=True)
class Query:
    """What to read. Rows come in the order of their source, which is the same each time."""

    source: Source
    name: str
    table: Table
    fields: tuple[str, ...]
    comparisons: tuple[Comparison, ...]
    options: Options

    @property
    def literal(self) -> Typed:
        """The value that the text itself names, so that no row must be read; else None.

        `db:ticker:AAPL:id` is AAPL, even if there is no such row. With any other field or condition, the row is read.
        """
        only = self.comparisons[0] if len(self.comparisons) == 1 else None
        if only is None or only.field != self.table.key or self.fields != (self.table.key,):
            return None
        return only.value if only.operator is Operator.EQ and not isinstance(only.value, tuple) else None


def check(source: DataSource, catalogue: Catalogue) -> list[InputError]:
    """Return every unknown table and field, and every value and operator that does not fit its field."""
    return _resolve(source, catalogue)[1]


def resolve(source: DataSource, catalogue: Catalogue) -> Query:
    """Return the query of a data source. Raises `DataSourceError` with every error."""
    query, errors = _resolve(source, catalogue)
    if query is None or errors:
        raise DataSourceError(errors)
    return query


def _resolve(source: DataSource, catalogue: Catalogue) -> tuple[Query | None, list[InputError]]:
    table_at, filter_at, *field_positions = source.positions or (0,) * (2 + len(source.fields))
    tables = catalogue.get(source.source, {})
    table = tables.get(source.table)
    if table is None:
        return None, [InputError(table_at, explain_unknown("table", source.table, tables))]
    errors = [
        InputError(position, explain_unknown("field", name, table.fields))
        for position, name in zip(field_positions, source.fields, strict=True)
        if name not in table.fields
    ]
    conditions = list(source.filter.conditions)
    if source.filter.key is not None and not table.has_key:
        errors.append(
            InputError(filter_at, f"the table {source.table} has no key: use all, with conditions as options")
        )
    elif source.filter.key is not None:
        conditions.insert(
            0, Condition(table.key, Operator.EQ, source.filter.key, is_text=True, position=filter_at)
        )
    comparisons = [_comparison(condition, table.fields, errors) for condition in conditions]
    valid = tuple(comparison for comparison in comparisons if comparison is not None)
    return Query(source.source, source.table, table, source.fields, valid, source.options), errors


def _comparison(
    condition: Condition, fields: Mapping[str, FieldType], errors: list[InputError]
) -> Comparison | None:
    kind = fields.get(condition.field)
    if kind is None:
        errors.append(InputError(condition.position, explain_unknown("field", condition.field, fields)))
        return None
    try:
        return _convert_condition(condition, kind)
    except InvalidValue as error:
        operator = "" if condition.is_text else f" {condition.operator}"
        errors.append(InputError(condition.position, f"{condition.field}{operator} {error}"))
        return None


def _convert_condition(condition: Condition, kind: FieldType) -> Comparison:
    if condition.operator in ORDERED and kind is FieldType.BOOLEAN:
        raise InvalidValue("cannot be used: true and false have no order")
    value: Typed | tuple[Typed, ...]
    if condition.operator is Operator.EXISTS:
        value = bool(condition.value)
    elif isinstance(condition.value, tuple):
        value = tuple(_value(kind, member, condition) for member in condition.value)
    else:
        value = _value(kind, condition.value, condition)
    return Comparison(condition.field, condition.operator, value)


def _value(kind: FieldType, value: Scalar, condition: Condition) -> Typed:
    return from_text(kind, value) if condition.is_text and isinstance(value, str) else from_json(kind, value)


# Whether a row fulfils the conditions of a query: for sources without a database. The SQL for databases means the same.
#
# Every condition is either true or false, even if a row has no value (null, or no such member):
#
#     $eq v, $in [...]     equal to the value, or to one of them. Null equals null and nothing else.
#     $ne v, $nin [...]    the negation of $eq and $in, so true for a row without a value. In SQL: IS DISTINCT FROM.
#     $gt $gte $lt $lte    false for a row without a value.
#     $exists true         there is a value; $exists false: there is none.
#
# Text is ordered by code points, in SQL by the collation "C". Values of different types are never equal.


ORDERS: dict[Operator, Callable[[Any, Any], bool]] = {
    Operator.GT: gt,
    Operator.GTE: ge,
    Operator.LT: lt,
    Operator.LTE: le,
}


def matches(row: Mapping[str, Any], comparisons: Iterable[Comparison]) -> bool:
    """Whether the row fulfils all comparisons. Its values must have the fields' types, as from `catalogue.read_row`."""
    return all(_holds(row.get(comparison.field), comparison) for comparison in comparisons)


def _holds(value: Any, comparison: Comparison) -> bool:
    expected = comparison.value
    match comparison.operator:
        case Operator.EXISTS:
            return (value is not None) is expected
        case Operator.EQ:
            return _equal(value, expected)
        case Operator.NE:
            return not _equal(value, expected)
        case Operator.IN | Operator.NIN:
            among = isinstance(expected, tuple) and any(_equal(value, member) for member in expected)
            return among is (comparison.operator is Operator.IN)
        case ordered:
            return value is not None and ORDERS[ordered](value, expected)


def _equal(value: Any, expected: Any) -> bool:
    # In Python true equals 1.
    return isinstance(value, bool) is isinstance(expected, bool) and bool(value == expected)
