"""Whether a row fulfils the conditions of a query: what sources without a database use, and what SQL is held against.

Every condition is either true or false, also where a row has no value (null, or no such member):

    $eq v, $in [...]     equal to the value, or to one of them. Null equals null and nothing else.
    $ne v, $nin [...]    exactly what $eq and $in leave, so rows without a value too. In SQL: IS DISTINCT FROM.
    $gt $gte $lt $lte    false for a row without a value.
    $exists true         there is a value; $exists false: there is none.

Text is ordered by code points, in SQL by the collation "C". Values of different types are never equal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from operator import ge, gt, le, lt
from typing import Any

from pipelines.data_sources.query import Comparison
from pipelines.data_sources.shapes import Operator

ORDERS: dict[Operator, Callable[[Any, Any], bool]] = {
    Operator.GT: gt,
    Operator.GTE: ge,
    Operator.LT: lt,
    Operator.LTE: le,
}


def matches(row: Mapping[str, Any], comparisons: Iterable[Comparison]) -> bool:
    """Whether the row fulfils all of them. Its values must have the types of their fields, as from `rows.read_row`."""
    return all(_holds(row.get(comparison.field), comparison) for comparison in comparisons)


def _holds(value: Any, comparison: Comparison) -> bool:
    wanted = comparison.value
    match comparison.operator:
        case Operator.EXISTS:
            return (value is not None) is wanted
        case Operator.EQ:
            return _equal(value, wanted)
        case Operator.NE:
            return not _equal(value, wanted)
        case Operator.IN | Operator.NIN:
            among = isinstance(wanted, tuple) and any(_equal(value, member) for member in wanted)
            return among is (comparison.operator is Operator.IN)
        case ordered:
            return value is not None and ORDERS[ordered](value, wanted)


def _equal(value: Any, wanted: Any) -> bool:
    # In Python true equals 1.
    return isinstance(value, bool) is isinstance(wanted, bool) and bool(value == wanted)
