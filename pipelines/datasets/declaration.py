"""Creates, changes and deletes datasets: the name, the source and the typed fields of a table.

A name is unique within the tenant, across all sources. Name and source never change, because schedules refer to them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from django.conf import settings

from agents import outbound
from agents.exceptions import OutboundRefused
from pipelines import tables
from pipelines.data_sources import (
    DataSource,
    DataSourceError,
    FieldType,
    Source,
    Table,
    looks_like,
    parse,
    read_table,
)
from pipelines.data_sources.catalogue import TableError
from pipelines.datasets.rows import BATCH, lock_dataset, put, raise_version, rows_of
from pipelines.datasets.validation import Upload, validate_rows
from pipelines.definition.errors import InputError
from pipelines.exceptions import AlreadyExists, PipelineError
from pipelines.models import Dataset, DatasetRow, Schedule
from pipelines.tables import fetched
from tenants.context import tenant_scope

MOST_NAMED = 10  # schedules that a refusal lists
LONGEST_LOCATION = 500
LONGEST_DESCRIPTION = 20_000


@dataclass(frozen=True, slots=True)
class Declaration:
    """The declaration of a dataset, perhaps with its rows."""

    name: str
    fields: Any
    source: str = Source.DB.value
    location: str = ""
    description: str = ""
    rows: Upload | None = None
    location_error: str | None = None  # from `error_of_location`, called before the transaction


def create(tenant_id: UUID, declaration: Declaration) -> Dataset:
    """Create a dataset. Raises `TableError`, `RowsInvalid`, `AlreadyExists`, `PipelineError` for one too many, and the errors of `put`."""
    table = _check_declaration(declaration)
    with tenant_scope(tenant_id):
        own = Dataset.objects.for_tenant(tenant_id)
        if own.filter(name=declaration.name).exists():
            raise AlreadyExists("dataset", declaration.name)
        if own.count() >= settings.ORCHESTRATOR_DATASETS_PER_TENANT:
            raise PipelineError(
                f"There are {settings.ORCHESTRATOR_DATASETS_PER_TENANT} datasets, which is the maximum.",
                code="too_many_datasets",
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
    """Change the members that are not None; `rows` replace all existing rows. Raises the errors of `create`, and `NotFound`.

    Rows must fit the new fields. The values of a removed field are dropped; `PipelineError` if a schedule reads it.
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
        removed = before.fields.keys() - table.fields.keys()
        if removed and (reading := schedules_reading(dataset, removed)):
            raise PipelineError(
                f"Fields to be removed from the dataset {dataset.name!r} are read by the schedules {_list_names(reading)}.",
                code="dataset_in_use",
            )
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
    """Delete a dataset with all its rows. Raises `NotFound`, and `PipelineError` with the schedules that read it."""
    with tenant_scope(tenant_id):
        dataset = lock_dataset(tenant_id, dataset_id)
        if reading := schedules_reading(dataset):
            raise PipelineError(
                f"The dataset {dataset.name!r} is read by the schedules {_list_names(reading)}.",
                code="dataset_in_use",
            )
        _empty_rows(dataset)
        dataset.delete()


def schedules_reading(dataset: Dataset, fields: Collection[str] = ()) -> list[str]:
    """Return the names of the schedules whose parameters read this dataset, and if `fields` are passed, any of these.

    Call it within a `tenant_scope`.
    """
    key = tables.shape_of(dataset).key

    def reads(source: DataSource) -> bool:
        is_of_dataset = (source.source, source.table) == (dataset.source, dataset.name)
        read = {*source.fields, *(condition.field for condition in source.filter.conditions)}
        read |= {key} if source.filter.key is not None else set()
        return is_of_dataset and (not fields or not read.isdisjoint(fields))

    rows = Schedule.objects.for_tenant(dataset.tenant_id).order_by("name").values_list("name", "params")
    return [name for name, params in rows.iterator() if any(map(reads, _sources_in(params)))]


def error_of_location(source: str, location: str) -> str | None:
    """Return the error of an address, or None. It may wait for DNS, so call it outside of transactions."""
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
        errors.append(InputError("location", "is only for the source api"))
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
    """Convert the rows to the new fields. Raises an error with every row that does not fit."""
    if dataset.source != Source.DB:
        _empty_rows(dataset)
        return
    stored = list(rows_of(dataset).order_by("id"))
    if stored and before.fields.get(before.key) != after.fields.get(after.key):
        message = (
            "cannot be added, removed or given another type while there are rows, because it identifies them"
        )
        raise TableError([InputError(f"fields.{after.key}", message)])
    rows = [{name: value for name, value in row.data.items() if name in after.fields} for row in stored]
    fitted = validate_rows(Upload(rows), after)
    changed = []
    for row, data in zip(stored, fitted, strict=True):
        if row.data != data:
            row.data = data
            changed.append(row)
    DatasetRow.objects.bulk_update(changed, ("data",), batch_size=BATCH)


def _empty_rows(dataset: Dataset) -> None:
    if dataset.source == Source.CACHE:
        fetched.drop_rows(dataset.tenant_id, dataset.name)
    rows_of(dataset).delete()


def _sources_in(params: Any) -> Iterator[DataSource]:
    for value in params.values() if isinstance(params, Mapping) else ():
        if looks_like(value):
            with suppress(DataSourceError):  # an invalid data source reads nothing
                yield parse(value)


def _list_names(schedules: Sequence[str]) -> str:
    more = f" and {len(schedules) - MOST_NAMED} more" if len(schedules) > MOST_NAMED else ""
    return f"{', '.join(schedules[:MOST_NAMED])}{more}"


def _plain(table: Table) -> dict[str, str]:
    return {name: FieldType(kind).value for name, kind in table.fields.items()}
