"""Tables that tenants declare: a name and the types of fields, checked before anything is stored in them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pipelines.data_sources.catalogue import (
    ABOUT_FIELDS,
    ABOUT_TABLES,
    FIELD_NAME,
    TABLE_NAME,
    FieldType,
    Table,
    Typed,
    ValueFault,
    from_json,
    from_text,
)
from pipelines.definition.faults import DefinitionError, Faults, at, shown
from pipelines.definition.values import text_fault

MOST_FIELDS = 100


class TableError(DefinitionError):
    """The table cannot be declared like this. `faults` names everything that is wrong with it, by path."""

    code = "invalid_dataset"


def read_table(name: Any, fields: Any, *, path: str = "", key: str = "id") -> Table:
    """A table as `{name, fields: {field: type}}` declares it. Raises `TableError`.

    What passes can be named in a data source. A field may have the name of an option; the JSON filter reaches it.
    """
    faults = Faults()
    if not isinstance(name, str) or not TABLE_NAME.fullmatch(name):
        faults.add(at(path, "name"), f"{shown(name)} is no name of a table: {ABOUT_TABLES}")
    place = at(path, "fields")
    if not isinstance(fields, Mapping):
        faults.add(place, f"must be an object, not {shown(fields)}")
        raise TableError(faults.found)
    if not 0 < len(fields) <= MOST_FIELDS:
        faults.add(place, f"must have 1 to {MOST_FIELDS} fields")
    for field, kind in fields.items():
        if not isinstance(field, str) or not FIELD_NAME.fullmatch(field):
            faults.add(place, f"{shown(field)} is no name of a field: {ABOUT_FIELDS}")
        elif kind not in list(FieldType):
            faults.add(at(place, field), f"must be one of {', '.join(FieldType)}, not {shown(kind)}")
    if faults.found:
        raise TableError(faults.found)
    return Table({field: FieldType(kind) for field, kind in fields.items()}, key)


# Rows of a table as they come from outside, brought to the types of their fields.


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
