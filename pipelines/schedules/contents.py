"""What is wrong with the parameters of a schedule, as far as it can be known without reading a row.

Data sources must be written as they are to be, name tables and fields that the tenant may read, and agree with each other. Values as they
are must suit the agent's input schema. Whether expanded values do is seen when they are there: the preview looks at the first of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from uuid import UUID

from agents import configuration, input_schemas
from agents.exceptions import RoleNotFound
from pipelines import data_sources, tables
from pipelines.data_sources import DataSourceError, ExpansionError, Pacing, Params, ParamsError
from pipelines.definition.faults import Fault, at

PARAMS = "params"
#: A schema with one of these at its top may judge one parameter by another, which is not there yet.
_DEPENDING = {"allOf", "anyOf", "oneOf", "not", "if", "dependentSchemas", "dependentRequired", "$ref"}


def faults(tenant_id: UUID, params: Mapping[str, Any], *, role: str | None) -> list[Fault]:
    """Every fault with its path below `params`. In the caller's `tenant_scope`."""
    try:
        read = data_sources.read_params(params)
    except ParamsError as error:
        return error.faults
    found = _of_sources(tenant_id, read)
    return found + (_of_values(tenant_id, role, read) if role else [])


def _of_sources(tenant_id: UUID, read: Params) -> list[Fault]:
    if not read.sources:
        return []
    catalogue = tables.catalogue_of(tenant_id)
    found: list[Fault] = []
    for name, source in read.sources.items():
        try:
            data_sources.resolve(source, catalogue)
        except DataSourceError as error:
            found += [Fault(at(PARAMS, name), str(fault)) for fault in error.faults]
    try:
        data_sources.agreed([source.options for source in read.sources.values()], Pacing())
    except ExpansionError as error:
        found.append(Fault(PARAMS, str(error)))
    return found


def _of_values(tenant_id: UUID, role: str, read: Params) -> list[Fault]:
    """What the agent's schema says about the values as they are. A data source counts as given, whatever it will be."""
    if read.sources and _judges_one_by_another(tenant_id, role):
        return []
    whole = {**read.literals, **dict.fromkeys(read.sources)}
    return [
        Fault(_path(path), message)
        for path, message in input_schemas.violations(tenant_id, role, whole)
        if len(path) == 1 or path[1] not in read.sources
    ]


def _judges_one_by_another(tenant_id: UUID, role: str) -> bool:
    try:
        schema = configuration.settings_for(tenant_id, role).input_schema
    except RoleNotFound:
        return True
    return bool(schema and _DEPENDING & schema.keys())


def _path(parts: tuple[str | int, ...]) -> str:
    found = ""
    for part in parts:
        found = at(found, part)
    return found
