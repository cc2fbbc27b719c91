"""Datasets themselves: what a table is called, where its rows are, and which types its fields have.

A name belongs to one dataset of the tenant, whatever the source. Name and source never change: schedules say them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from django.conf import settings

from agents import outbound
from agents.exceptions import OutboundRefused
from pipelines import tables
from pipelines.data_sources import DataSourceError, FieldType, Source, Table, looks_like, parse, read_table
from pipelines.data_sources.catalogue import TableError
from pipelines.definition.errors import InputError
from pipelines.exceptions import AlreadyExists, DatasetInUse, TooManyDatasets
from pipelines.models import Dataset, DatasetRow, Schedule
from pipelines.tables import fetched
from tenants.context import tenant_scope

from .rows import BATCH, lock_dataset, put, raise_version, rows_of
from .validation import Upload, fitting

NAMED = 10  # schedules that a refusal names
LONGEST_LOCATION = 500
LONGEST_DESCRIPTION = 20_000


@dataclass(frozen=True, slots=True)
class Declaration:
    """What a dataset is to be. `rows` are given with it, or not at all."""

    name: str
    fields: Any
    source: str = Source.DB.value
    location: str = ""
    description: str = ""
    rows: Upload | None = None
    location_error: str | None = None  # what `error_of_location` said before the transaction


def create(tenant_id: UUID, declaration: Declaration) -> Dataset:
    """Raises `TableError`, `RowsInvalid`, `AlreadyExists`, `TooManyDatasets`, and what filling it raises."""
    table = _check_declaration(declaration)
    with tenant_scope(tenant_id):
        own = Dataset.objects.for_tenant(tenant_id)
        if own.filter(name=declaration.name).exists():
            raise AlreadyExists("dataset", declaration.name)
        if own.count() >= settings.ORCHESTRATOR_DATASETS_PER_TENANT:
            raise TooManyDatasets(
                f"There are {settings.ORCHESTRATOR_DATASETS_PER_TENANT} datasets, which is the most."
            )
        dataset = Dataset.objects.create(
            tenant_id=tenant_id,
            name=declaration.name,
            source=declaration.source,
            location=declaration.location,
            description=declaration.description,
            fields=_plain(table),
        )
        if declaration.rows is not None:
            put(dataset, declaration.rows)
        dataset.refresh_from_db()
        return dataset


def change(
    tenant_id: UUID,
    dataset_id: UUID,
    *,
    fields: Any = None,
    location: str | None = None,
    description: str | None = None,
    rows: Upload | None = None,
    location_error: str | None = None,
) -> Dataset:
    """Change what is given; `rows` replace those that are there. Raises as `create` does, and `NotFound`.

    Rows must fit the new fields. What they hold in a field that is no longer there is dropped with it.
    """
    with tenant_scope(tenant_id):
        dataset = lock_dataset(tenant_id, dataset_id)
        declaration = Declaration(
            name=dataset.name,
            source=dataset.source,
            fields=dataset.fields if fields is None else fields,
            location=dataset.location if location is None else location,
            description=dataset.description if description is None else description,
            location_error=location_error,
        )
        table, before = _check_declaration(declaration), tables.shape_of(dataset)
        if table != before and rows is None:
            _refit(dataset, before, table)
        elif table != before:
            _empty_rows(dataset)
        raise_version(
            dataset, fields=_plain(table), location=declaration.location, description=declaration.description
        )
        if rows is not None:
            put(dataset, rows, replace=True)
        return dataset


def delete(tenant_id: UUID, dataset_id: UUID) -> None:
    """With all its rows. Raises `NotFound`, and `DatasetInUse` naming the schedules that read it."""
    with tenant_scope(tenant_id):
        dataset = lock_dataset(tenant_id, dataset_id)
        if reading := schedules_reading(dataset):
            more = f" and {len(reading) - NAMED} more" if len(reading) > NAMED else ""
            named = ", ".join(reading[:NAMED])
            raise DatasetInUse(f"The dataset {dataset.name!r} is read by the schedules {named}{more}.")
        _empty_rows(dataset)
        dataset.delete()


def schedules_reading(dataset: Dataset) -> list[str]:
    """The names of the schedules whose parameters name this dataset. In the caller's scope."""
    source = (dataset.source, dataset.name)
    rows = Schedule.objects.for_tenant(dataset.tenant_id).order_by("name").values_list("name", "params")
    return [name for name, params in rows.iterator() if source in set(_tables_in(params))]


def error_of_location(source: str, location: str) -> str | None:
    """What is wrong with an address, or None. May ask the name service for seconds: not inside a transaction."""
    if source != Source.API or not location:
        return None
    try:
        outbound.check_url(location, purpose=outbound.DATA_SOURCES)
    except OutboundRefused as error:
        return str(error)
    return None


def _check_declaration(declaration: Declaration) -> Table:
    errors: list[InputError] = []
    table = None
    try:
        table = read_table(declaration.name, declaration.fields)
    except TableError as error:
        errors += error.errors
    if declaration.source not in list(Source):
        errors.append(InputError("source", f"must be one of {', '.join(Source)}"))
    elif declaration.source == Source.API and not declaration.location:
        errors.append(InputError("location", "is required: the address of the rows"))
    elif declaration.source != Source.API and declaration.location:
        errors.append(InputError("location", "is for the source api alone"))
    elif declaration.location_error:
        errors.append(InputError("location", declaration.location_error))
    if len(declaration.location) > LONGEST_LOCATION:
        errors.append(InputError("location", f"must have at most {LONGEST_LOCATION} characters"))
    if len(declaration.description) > LONGEST_DESCRIPTION:
        errors.append(InputError("description", f"must have at most {LONGEST_DESCRIPTION:,} characters"))
    if errors or table is None:
        raise TableError(errors)
    return table


def _refit(dataset: Dataset, before: Table, after: Table) -> None:
    """Bring the rows to the new fields, or refuse with every row that does not fit."""
    if dataset.source != Source.DB:
        _empty_rows(dataset)
        return
    stored = list(rows_of(dataset).order_by("id"))
    if stored and before.fields.get(before.key) != after.fields.get(after.key):
        message = "cannot come, go or change its type while there are rows, since it tells them apart"
        raise TableError([InputError(f"fields.{after.key}", message)])
    rows = [{name: value for name, value in row.data.items() if name in after.fields} for row in stored]
    fitted = fitting(Upload(rows), after)
    different = []
    for row, data in zip(stored, fitted, strict=True):
        if row.data != data:
            row.data = data
            different.append(row)
    DatasetRow.objects.bulk_update(different, ("data",), batch_size=BATCH)


def _empty_rows(dataset: Dataset) -> None:
    if dataset.source == Source.CACHE:
        fetched.drop_rows(dataset.tenant_id, dataset.name)
    rows_of(dataset).delete()


def _tables_in(params: Any) -> Iterator[tuple[str, str]]:
    for value in params.values() if isinstance(params, Mapping) else ():
        if looks_like(value):
            try:
                source = parse(value)
            except DataSourceError:
                continue  # it reads nothing
            yield source.source.value, source.table


def _plain(table: Table) -> dict[str, str]:
    return {name: FieldType(kind).value for name, kind in table.fields.items()}
