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
)
from pipelines.definition.faults import DefinitionError, Faults, at, shown

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
