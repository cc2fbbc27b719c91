"""The rows of a dataset: added, changed, replaced and removed. Everything of a call happens, or nothing.

A row that is there keeps its place when it is changed or replaced, so a reader that goes page by page meanwhile sees no row twice.
Writers of one dataset wait for each other at its row.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from django.conf import settings
from django.db.models import F
from django.db.models.functions import Now

from pipelines import tables
from pipelines.data_sources import Source, Table
from pipelines.exceptions import DatasetFull, NotFound, RowsElsewhere
from pipelines.models import Dataset, DatasetRow
from pipelines.tables import fetched
from tenants.context import tenant_scope
from tenants.identifiers import uuid7

from .validation import Row, Upload, fitting, key_of, refuse_too_many


@dataclass(frozen=True, slots=True)
class FillResult:
    """The outcome of a call. `rows` is how many there are now, `version` that of the dataset."""

    added: int
    updated: int
    removed: int
    rows: int
    version: int

    @property
    def changed(self) -> bool:
        return bool(self.added or self.updated or self.removed)


def fill(
    tenant_id: UUID, dataset_id: UUID, upload: Upload, *, replace: bool = False, dry_run: bool = False
) -> FillResult:
    """Add the rows, or change those with the same `id`; with `replace`, remove all others. A `dry_run` only says what would be.

    Raises `RowsInvalid`, `TooManyRows`, `DatasetFull`, `NotFound` and, where rows are not kept here, `RowsElsewhere`.
    """
    with tenant_scope(tenant_id):
        dataset = lock_dataset(tenant_id, dataset_id)
        done = put(dataset, upload, replace=replace, dry_run=dry_run)
        if done.changed and not dry_run:
            raise_version(dataset)
        return dataclasses.replace(done, version=dataset.version)


def put(dataset: Dataset, upload: Upload, *, replace: bool = False, dry_run: bool = False) -> FillResult:
    """As `fill`, for a caller that holds the lock of the dataset's row and raises its version."""
    refuse_elsewhere(dataset)
    refuse_too_many(upload)
    place = place_of(dataset)
    keyed = place.with_keys(fitting(upload, place.table), replace=replace)
    before = place.among(keyed)
    gone = [key for key in place.all_keys() if key not in keyed] if replace else []
    added = keyed.keys() - before.keys()
    number = place.number() + len(added) - len(gone)
    _refuse_full(dataset, number)
    fresh = {key: row for key, row in keyed.items() if before.get(key) != row}
    if (fresh or gone) and not dry_run:
        place.write(fresh, gone)
    return FillResult(len(added), len(fresh) - len(added), len(gone), number, dataset.version)


def remove(tenant_id: UUID, dataset_id: UUID, key: str) -> None:
    """Raises `NotFound` when there is no such row, and `RowsElsewhere`."""
    with tenant_scope(tenant_id):
        dataset = lock_dataset(tenant_id, dataset_id)
        refuse_elsewhere(dataset)
        place = place_of(dataset)
        if key not in place.among([key]):
            raise NotFound(f"row {key!r} of the dataset", dataset.name)
        place.write({}, [key])
        raise_version(dataset)


def number_of_rows(dataset: Dataset) -> int | None:
    """How many there are; None where that would mean to read them. In the caller's scope."""
    return place_of(dataset).number() if dataset.source in (Source.DB, Source.CACHE) else None


def lock_dataset(tenant_id: UUID, dataset_id: UUID) -> Dataset:
    found: Dataset | None = (
        Dataset.objects.for_tenant(tenant_id).select_for_update().filter(pk=dataset_id).first()
    )
    if found is None:
        raise NotFound("dataset", dataset_id)
    return found


def raise_version(dataset: Dataset, **changes: Any) -> None:
    Dataset.objects.for_tenant(dataset.tenant_id).filter(pk=dataset.pk).update(
        **changes, version=F("version") + 1, updated_at=Now()
    )
    dataset.refresh_from_db()


def refuse_elsewhere(dataset: Dataset) -> None:
    if dataset.source not in (Source.DB, Source.CACHE):
        where = "at its address" if dataset.source == Source.API else "in the tenant's folder on the server"
        raise RowsElsewhere(
            f"The rows of {dataset.source}:{dataset.name} are {where}; they are read when a schedule runs."
        )


def refuse_not_listed(dataset: Dataset) -> None:
    """Raises `RowsElsewhere` unless the rows are in the database."""
    if dataset.source == Source.CACHE:
        raise RowsElsewhere(
            f"The rows of cache:{dataset.name} are kept in Redis; they are read when a schedule runs."
        )
    refuse_elsewhere(dataset)


def _refuse_full(dataset: Dataset, number: int) -> None:
    most = settings.ORCHESTRATOR_DATASET_ROWS
    if number > most:
        raise DatasetFull(
            f"{dataset.name} would have {number:,} rows; {most:,} is the most that it may have."
        )


# The places where rows of a dataset are kept here: PostgreSQL, or Redis for a while. Both are written and looked up by keys.


BATCH = 1_000  # rows per statement


def rows_of(dataset: Dataset) -> Any:
    return DatasetRow.objects.for_tenant(dataset.tenant_id).filter(dataset_id=dataset.pk)


def place_of(dataset: Dataset) -> DatasetAddress:
    kind = _CachedRows if dataset.source == Source.CACHE else _StoredRows
    return kind(dataset, tables.shape_of(dataset))


class DatasetAddress(ABC):
    """Where rows are, by their keys."""

    def __init__(self, dataset: Dataset, table: Table) -> None:
        self.dataset, self.table = dataset, table

    @abstractmethod
    def number(self) -> int:
        """How many rows there are."""

    @abstractmethod
    def all_keys(self) -> list[str]:
        """In the order of their rows."""

    @abstractmethod
    def among(self, keys: Iterable[str]) -> dict[str, Row]:
        """The rows that have one of these keys."""

    @abstractmethod
    def write(self, fresh: Mapping[str, Row], gone: Sequence[str]) -> None:
        """Add or change the fresh rows, and remove those with the other keys."""

    def with_keys(self, rows: list[Row], *, replace: bool) -> dict[str, Row]:
        """The rows by their keys. Without a field that tells them apart, the first replaces the first that is there."""
        if self.table.has_key:
            return {key_of(row, self.table): row for row in rows}
        places = iter(self.all_keys() if replace else ())
        return {next(places, None) or str(uuid7()): row for row in rows}


class _StoredRows(DatasetAddress):
    """Rows in PostgreSQL."""

    def number(self) -> int:
        return int(rows_of(self.dataset).count())

    def all_keys(self) -> list[str]:
        return list(rows_of(self.dataset).order_by("id").values_list("key", flat=True))

    def among(self, keys: Iterable[str]) -> dict[str, Row]:
        own = rows_of(self.dataset)
        return {
            key: data
            for some in _in_batches(list(keys))
            for key, data in own.filter(key__in=some).values_list("key", "data")
        }

    def write(self, fresh: Mapping[str, Row], gone: Sequence[str]) -> None:
        for some in _in_batches(gone):
            rows_of(self.dataset).filter(key__in=some).delete()
        ids = sorted(uuid7() for _ in fresh)  # of one millisecond, they have no order by themselves
        new_rows = [
            DatasetRow(id=id_, tenant_id=self.dataset.tenant_id, dataset=self.dataset, key=key, data=row)
            for id_, (key, row) in zip(ids, fresh.items(), strict=True)
        ]
        DatasetRow.objects.bulk_create(
            new_rows,
            batch_size=BATCH,
            update_conflicts=True,
            unique_fields=("dataset", "key"),
            update_fields=("data",),
        )


class _CachedRows(DatasetAddress):
    """Rows in Redis, all of them one value."""

    def number(self) -> int:
        return len(self._read_kept())

    def all_keys(self) -> list[str]:
        return list(self._read_kept())

    def among(self, keys: Iterable[str]) -> dict[str, Row]:
        rows = self._read_kept()
        return {key: rows[key] for key in keys if key in rows}

    def write(self, fresh: Mapping[str, Row], gone: Sequence[str]) -> None:
        """If the transaction fails after this, Redis keeps rows that were never committed, until they expire."""
        left = self._read_kept()
        for key in gone:
            left.pop(key, None)
        left.update(fresh)
        fetched.keep_rows(self.dataset.tenant_id, self.dataset.name, list(left.values()))

    def _read_kept(self) -> dict[str, Row]:
        rows = fetched.read_cached_rows(self.dataset.tenant_id, self.dataset.name) or []
        return {key_of(row, self.table) if self.table.has_key else str(n): row for n, row in enumerate(rows)}


def _in_batches(keys: Sequence[str]) -> Iterator[Sequence[str]]:
    return (keys[start : start + BATCH] for start in range(0, len(keys), BATCH))
