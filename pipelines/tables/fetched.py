"""Reads rows that are not in the database: from an address, from a file of an operator, or from the cache in Redis.

Rows are converted to the types of the table's fields first. The error of a row that does not fit names its number, or its line in the
file. An address is called through the same guard as agents, so that a tenant's URL cannot reach internal servers.
"""

from __future__ import annotations

import csv
import io
import os
import stat
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, BinaryIO
from uuid import UUID

import orjson
import redis
from django.conf import settings

from agents import outbound
from agents.exceptions import AgentError
from pipelines import keys
from pipelines.data_sources import Query, RowError, Source, Table, matches, read_row
from pipelines.data_sources.catalogue import TABLE_NAME
from pipelines.exceptions import SourceUnavailable
from pipelines.models import Dataset
from pipelines.tables.relations import Row, dataset_of, shape_of
from tenants import redis as connections
from tenants import strict_json
from tenants.context import tenant_scope
from tenants.wording import describe_count

MOST_VALUES_PER_ROW = 200  # a table has a hundred fields at most

LINE = "line"  # of a CSV, whose values are texts
Numbered = Generator[tuple[str, Mapping[str, Any]]]  # rows with their place, as in "line 5" or "row 5"


def rows(tenant_id: UUID, query: Query) -> Iterator[Row]:
    """Yield the typed rows that fulfil the query, in the order of the source. Raises `SourceUnavailable`."""
    with tenant_scope(tenant_id):
        dataset = dataset_of(tenant_id, query)
    for row in read_typed_rows(dataset):
        if matches(row, query.comparisons):
            yield row


def read_typed_rows(dataset: Dataset) -> Iterator[Row]:
    """Yield all rows of a dataset that is not in the database. Raises `SourceUnavailable`."""
    table, name = shape_of(dataset), f"{dataset.source}:{dataset.name}"
    most = settings.ORCHESTRATOR_DATASET_ROWS
    try:
        with closing(_READERS[Source(dataset.source)](dataset)) as numbered:
            for number, (place, raw) in enumerate(numbered, 1):
                if number > most:
                    raise SourceUnavailable(f"{name} has more than {most:,} rows.")
                yield _convert_row(raw, table, f"{name}, {place}", as_text=place.startswith(LINE))
    except (BadTable, NoSuchFile) as error:
        raise SourceUnavailable(f"{name}: {error}.") from error


def _convert_row(raw: Mapping[str, Any], table: Table, place: str, *, as_text: bool) -> Row:
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
            purpose=outbound.DATA_SOURCES,
        )
    except AgentError as error:
        raise SourceUnavailable(f"api:{dataset.name}: {error}") from error
    if answer.status != 200:
        raise SourceUnavailable(f"api:{dataset.name} answered with status {answer.status}.")
    return _objects(answer.body)


def _from_file(dataset: Dataset) -> Numbered:
    most = settings.ORCHESTRATOR_DATA_SOURCE_BYTES
    with open_file(dataset.tenant_id, dataset.name, largest=most) as (file, suffix):
        if suffix == ".csv":
            with closing(csv_lines(file)) as rows_:
                yield from ((f"{LINE} {line}", row) for line, row in rows_)
        else:
            yield from _objects(file.read(most + 1))


def _from_cache(dataset: Dataset) -> Numbered:
    rows = read_cached_rows(dataset.tenant_id, dataset.name)
    if rows is None:
        raise SourceUnavailable(
            f"cache:{dataset.name} is empty: its rows have expired, or were never stored."
        )
    return ((f"row {number}", row) for number, row in enumerate(rows, 1))


def _objects(raw: bytes) -> Numbered:
    most = settings.ORCHESTRATOR_DATASET_ROWS
    try:
        data = strict_json.loads(
            raw, max_bytes=settings.ORCHESTRATOR_DATA_SOURCE_BYTES, max_nodes=most * MOST_VALUES_PER_ROW
        )
    except strict_json.StrictJSONError as error:
        raise BadTable(f"{error.path} {error.message}".strip()) from error
    if not isinstance(data, list) or not all(isinstance(row, dict) for row in data):
        raise BadTable("it must be a list of objects")
    return ((f"row {number}", row) for number, row in enumerate(data, 1))


_READERS = {Source.API: _from_address, Source.FILE: _from_file, Source.CACHE: _from_cache}


# CSV: a header with the names of the fields, then one line per row, in UTF-8 with or without a byte order mark.


LONGEST_VALUE = 100_000  # characters


class BadTable(Exception):
    """The data is not a table. The message names the line."""


def csv_lines(file: BinaryIO) -> Generator[tuple[int, dict[str, str]]]:
    """Yield the rows as text, with the number of the line on which each begins. The header is line 1; empty lines are skipped.

    Reads lazily. Raises `BadTable` for text that is not UTF-8, an open quote, or a row with another number of values than the header.
    """
    text = io.TextIOWrapper(file, "utf-8-sig", newline="")
    reader = csv.reader(text, strict=True)
    last = 0
    try:
        header = _header(next(reader, []))
        last = reader.line_num
        for values in reader:
            line, last = last + 1, reader.line_num
            if values:
                yield line, _row(line, values, header)
    except UnicodeDecodeError as error:
        raise BadTable(f"it is not UTF-8 text, somewhere after line {last}") from error
    except csv.Error as error:
        raise BadTable(f"line {last + 1} is not CSV: {error}") from error
    finally:
        text.detach()  # the caller closes the file


def _row(line: int, values: list[str], header: list[str]) -> dict[str, str]:
    if len(values) != len(header):
        raise BadTable(
            f"line {line} has {describe_count(len(values), 'value')}, and the header {describe_count(len(header), 'value')}"
        )
    if any(len(value) > LONGEST_VALUE for value in values):
        raise BadTable(f"line {line} has a value of more than {LONGEST_VALUE:,} characters")
    return dict(zip(header, values, strict=True))


def _header(names: list[str]) -> list[str]:
    fields = [name.strip() for name in names]
    if not any(fields):
        raise BadTable("line 1 must name the fields")
    if len(fields) > MOST_VALUES_PER_ROW:
        raise BadTable(f"line 1 names more than {MOST_VALUES_PER_ROW} fields")
    if twice := next((name for name in fields if fields.count(name) > 1), None):
        raise BadTable(f"line 1 names the field {twice!r} twice")
    return fields


# The folder of a tenant, in which an operator puts files for its data sources.
#
# `ORCHESTRATOR_DATA_FOLDER/<tenant id>/<dataset>.csv` or `.json`. Only regular files in this folder are opened: all
# links, pipes and devices are refused.


SUFFIXES = (".csv", ".json")
_OPEN_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC


class NoSuchFile(Exception):
    """The file is not in the tenant's folder, or cannot be read."""


@contextmanager
def open_file(tenant_id: UUID, name: str, *, largest: int) -> Iterator[tuple[BinaryIO, str]]:
    """Open the file of this dataset, and return it with its suffix. Raises `NoSuchFile`, also for more than `largest` bytes."""
    if not TABLE_NAME.fullmatch(name):
        raise NoSuchFile("its name is not a valid dataset name")
    with _folder(tenant_id) as folder:
        handle, suffix = _find_file(folder, name)
    with os.fdopen(handle, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size > largest:
            raise NoSuchFile(f"it has {size:,} bytes, but at most {largest:,} are allowed")
        yield file, suffix


@contextmanager
def _folder(tenant_id: UUID) -> Iterator[int]:
    place = Path(settings.ORCHESTRATOR_DATA_FOLDER) / str(tenant_id)
    try:
        folder = os.open(place, _OPEN_FLAGS | os.O_DIRECTORY)
    except OSError as error:
        raise NoSuchFile("the tenant has no folder of files") from error
    try:
        yield folder
    finally:
        os.close(folder)


def _find_file(folder: int, name: str) -> tuple[int, str]:
    for suffix in SUFFIXES:
        try:
            # Opening a pipe without a writer would block.
            handle = os.open(name + suffix, _OPEN_FLAGS | os.O_NONBLOCK, dir_fd=folder)
        except FileNotFoundError:
            continue
        except OSError as error:
            raise NoSuchFile("it is not a readable regular file") from error
        if stat.S_ISREG(os.fstat(handle).st_mode):
            return handle, suffix
        os.close(handle)
        raise NoSuchFile("it is not a readable regular file")
    raise NoSuchFile("the tenant's folder has no such file")


# Rows in Redis, one value per dataset, until they expire. They may be lost at any moment.


def read_cached_rows(tenant_id: UUID, name: str) -> list[dict[str, Any]] | None:
    """Return the rows, or None if there are no rows (any more). Raises `SourceUnavailable`."""
    try:
        value: Any = connections.client().get(keys.rows_of(tenant_id, name))
    except redis.RedisError as error:
        raise _redis_unavailable(name) from error
    if value is None:
        return None
    return orjson.loads(value)


def keep_rows(tenant_id: UUID, name: str, rows: Sequence[dict[str, Any]]) -> None:
    """Replace the rows, for ORCHESTRATOR_DATASET_CACHE_SECONDS from now. Raises `SourceUnavailable`."""
    seconds = int(settings.ORCHESTRATOR_DATASET_CACHE_SECONDS)
    try:
        connections.client().set(keys.rows_of(tenant_id, name), orjson.dumps(list(rows)), ex=seconds)
    except redis.RedisError as error:
        raise _redis_unavailable(name) from error


def drop_rows(tenant_id: UUID, name: str) -> None:
    try:
        connections.client().delete(keys.rows_of(tenant_id, name))
    except redis.RedisError as error:
        raise _redis_unavailable(name) from error


def _redis_unavailable(name: str) -> SourceUnavailable:
    return SourceUnavailable(f"cache:{name}: Redis does not answer.")
