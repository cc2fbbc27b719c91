"""Rows that are not in the database: at an address, in a file that an operator has put there, or kept for a while.

Whatever comes is brought to the types of the table's fields before anybody looks at it; a row that does not fit is named by its
number, or by the line of its file. An address is called through the same guard as agents are, so that a tenant's URL reaches
nothing inside.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from contextlib import closing
from typing import Any
from uuid import UUID

from django.conf import settings

from agents import outbound
from agents.exceptions import AgentError
from pipelines.data_sources import Query, RowError, Source, Table, matches, read_row
from pipelines.exceptions import SourceUnavailable
from pipelines.models import Dataset
from pipelines.tables import cache, folder, relations
from pipelines.tables.csv_text import BadTable, lines_of
from pipelines.tables.relations import Row
from pipelines.tables.stored import shape_of
from tenants import strict_json
from tenants.context import tenant_scope

MOST_VALUES_PER_ROW = 200  # of JSON; a table has a hundred fields at most

LINE = "line"  # of a CSV, whose values are texts
Numbered = Generator[tuple[str, Mapping[str, Any]]]  # rows with what a person calls their place


def rows(tenant_id: UUID, query: Query) -> Iterator[Row]:
    """The rows that fulfil the query, typed, in the order in which the source has them. Raises `SourceUnavailable`."""
    with tenant_scope(tenant_id):
        dataset = Dataset.objects.for_tenant(tenant_id).filter(source=query.source, name=query.name).first()
    if dataset is None or shape_of(dataset) != query.table:
        raise relations.changed(query)
    for row in typed_rows(dataset):
        if matches(row, query.comparisons):
            yield row


def typed_rows(dataset: Dataset) -> Iterator[Row]:
    """All rows of a dataset that is not in the database. Raises `SourceUnavailable`."""
    table, name, most = (
        shape_of(dataset),
        f"{dataset.source}:{dataset.name}",
        settings.ORCHESTRATOR_DATASET_ROWS,
    )
    try:
        with closing(_READERS[Source(dataset.source)](dataset)) as found:
            for number, (place, raw) in enumerate(found, 1):
                if number > most:
                    raise SourceUnavailable(f"{name} has more than {most:,} rows.")
                yield _typed(raw, table, f"{name}, {place}", as_text=place.startswith(LINE))
    except (BadTable, folder.NoSuchFile) as error:
        raise SourceUnavailable(f"{name}: {error}.") from error


def _typed(raw: Mapping[str, Any], table: Table, place: str, *, as_text: bool) -> Row:
    try:
        return read_row(raw, table, as_text=as_text)
    except RowError as error:
        raise SourceUnavailable(f"{place}: {error}.") from error


def _from_address(dataset: Dataset) -> Numbered:
    most = settings.ORCHESTRATOR_DATA_SOURCE_BYTES
    try:
        answer = outbound.send(
            "GET",
            dataset.location,
            headers={"Accept": "application/json"},
            deadline_seconds=settings.ORCHESTRATOR_DATA_SOURCE_SECONDS,
            max_bytes=most,
        )
    except AgentError as error:
        raise SourceUnavailable(f"api:{dataset.name}: {error}") from error
    if answer.status != 200:
        raise SourceUnavailable(f"api:{dataset.name} answered with status {answer.status}.")
    return _objects(answer.body)


def _from_file(dataset: Dataset) -> Numbered:
    most = settings.ORCHESTRATOR_DATA_SOURCE_BYTES
    with folder.opened(dataset.tenant_id, dataset.name, largest=most) as (file, suffix):
        if suffix == ".csv":
            with closing(lines_of(file)) as rows_:
                yield from ((f"{LINE} {line}", row) for line, row in rows_)
        else:
            yield from _objects(file.read(most + 1))


def _from_cache(dataset: Dataset) -> Numbered:
    kept = cache.kept(dataset.tenant_id, dataset.name)
    if kept is None:
        raise SourceUnavailable(f"cache:{dataset.name} is empty: its rows have expired, or were never given.")
    return ((f"row {number}", row) for number, row in enumerate(kept, 1))


def _objects(raw: bytes) -> Numbered:
    most = settings.ORCHESTRATOR_DATASET_ROWS
    try:
        found = strict_json.loads(
            raw, max_bytes=settings.ORCHESTRATOR_DATA_SOURCE_BYTES, max_nodes=most * MOST_VALUES_PER_ROW
        )
    except strict_json.StrictJSONError as error:
        raise BadTable(f"{error.path} {error.message}".strip()) from error
    if not isinstance(found, list) or not all(isinstance(row, dict) for row in found):
        raise BadTable("it must be a list of objects")
    return ((f"row {number}", row) for number, row in enumerate(found, 1))


_READERS = {Source.API: _from_address, Source.FILE: _from_file, Source.CACHE: _from_cache}
