"""Comparisons as SQL that says exactly what `data_sources.matching` says.

Every condition is true or false, never unknown, also for rows without a value. Values travel as parameters; the text
consists of our own pieces alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from psycopg import sql

from pipelines.data_sources import FieldType, Operator
from pipelines.data_sources.query import Comparison

Piece = tuple[sql.Composable, list[Any]]

NUMBERS = (FieldType.INTEGER, FieldType.NUMBER)
_ORDERED = {
    Operator.GT: sql.SQL(" > %s"),
    Operator.GTE: sql.SQL(" >= %s"),
    Operator.LT: sql.SQL(" < %s"),
    Operator.LTE: sql.SQL(" <= %s"),
}


@dataclass(frozen=True, slots=True)
class Column:
    """A field in SQL: an expression of its type, with the parameters that stand in it."""

    kind: FieldType
    expression: sql.Composable
    parameters: tuple[Any, ...] = ()


def all_of(comparisons: Iterable[Comparison], columns: Mapping[str, Column]) -> list[Piece]:
    """A condition for each comparison. A field that is none of the columns is a KeyError, and no SQL."""
    return [_condition(comparison, columns[comparison.field]) for comparison in comparisons]


def _condition(comparison: Comparison, column: Column) -> Piece:
    expression, before = column.expression, list(column.parameters)
    match comparison.operator:
        case Operator.EXISTS:
            return expression + sql.SQL(" IS NOT NULL" if comparison.value else " IS NULL"), before
        case Operator.EQ:
            return expression + sql.SQL(" IS NOT DISTINCT FROM %s"), [
                *before,
                _parameter(comparison.value, column),
            ]
        case Operator.NE:
            return expression + sql.SQL(" IS DISTINCT FROM %s"), [
                *before,
                _parameter(comparison.value, column),
            ]
        case Operator.IN | Operator.NIN:
            return _among(comparison, column)
        case ordered:
            # In a list of conditions unknown counts as false, and a null is less than nothing.
            return expression + _ORDERED[ordered], [*before, _parameter(comparison.value, column)]


def _among(comparison: Comparison, column: Column) -> Piece:
    members = comparison.value if isinstance(comparison.value, tuple) else ()
    known = [_parameter(member, column) for member in members if member is not None]
    among: sql.Composable = sql.SQL("coalesce(") + column.expression + sql.SQL(" = ANY(%s), false)")
    parameters: list[Any] = [*column.parameters, known]
    if len(known) < len(members):
        among = sql.SQL("(") + among + sql.SQL(" OR ") + column.expression + sql.SQL(" IS NULL)")
        parameters += column.parameters
    return among if comparison.operator is Operator.IN else sql.SQL("NOT ") + among, parameters


def _parameter(value: Any, column: Column) -> Any:
    """As a decimal a number is compared by its digits, as jsonb keeps it; as a float it would be rounded."""
    if column.kind in NUMBERS and isinstance(value, int | float):
        whole = isinstance(value, float) and value.is_integer() and abs(value) < 2**63
        return Decimal(repr(int(value) if whole else value))
    return value
