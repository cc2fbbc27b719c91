"""Rows of a table as they come from outside, brought to the types of their fields."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pipelines.data_sources.catalogue import FieldType, Table, Typed, ValueFault, from_json, from_text
from pipelines.definition.faults import shown
from pipelines.definition.values import text_fault


class RowError(ValueError):
    """The row does not fit its table. `faults` has a message for each field at fault."""

    def __init__(self, faults: Mapping[str, str]) -> None:
        self.faults = dict(faults)
        super().__init__("; ".join(f"{field} {message}" for field, message in self.faults.items()))


def read_row(row: Mapping[str, Any], table: Table, *, as_text: bool = False) -> dict[str, Typed]:
    """The row with typed values, and null for every field that it leaves out. Raises `RowError`.

    From CSV everything comes `as_text`; there, an empty value of any field but a text is null. A row must have the
    table's key.
    """
    faults: dict[str, str] = {
        shown(name): "is no field of this table" for name in row if name not in table.fields
    }
    found: dict[str, Typed] = {}
    for name, kind in table.fields.items():
        value = row.get(name)
        try:
            if as_text and isinstance(value, str):
                found[name] = from_text(kind, value) if value or kind is FieldType.STRING else None
            else:
                found[name] = from_json(kind, value)
            fault = text_fault(value) if isinstance(value, str) else None
            if fault:
                raise ValueFault(fault)
        except ValueFault as error:
            faults[name] = str(error)
    if table.has_key and table.key not in faults and found[table.key] in (None, ""):
        faults[table.key] = "is missing: it tells the rows apart"
    if faults:
        raise RowError(faults)
    return found
