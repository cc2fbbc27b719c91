"""Adds, changes, replaces and removes the rows of a dataset. A call succeeds as a whole or not at all.

A row keeps its place when it is changed or replaced, so a concurrent reader that goes page by page sees no row twice. Writers lock the
dataset's row, so they wait for each other.
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
from pipelines.datasets.validation import Row, Upload, key_of, refuse_too_many, validate_rows
from pipelines.exceptions import NotFound, PipelineError
from pipelines.models import Dataset, DatasetRow
from pipelines.tables import fetched
from tenants.context import tenant_scope
from tenants.identifiers import uuid7


@dataclass(frozen=True, slots=True)
class FillResult:
    """The outcome of a call. `rows` is the new number of rows, `version` that of the dataset."""

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
    """Add the rows, or change those with the same `id`; with `replace`, remove all others. A `dry_run` changes nothing.

    Raises `RowsInvalid`, `NotFound`, and `PipelineError` if they are too many, or stored elsewhere.
    """
    with tenant_scope(tenant_id):
        dataset = lock_dataset(tenant_id, dataset_id)
        done = put(dataset, upload, replace=replace, dry_run=dry_run)
        if done.changed and not dry_run:
            raise_version(dataset)
        return dataclasses.replace(done, version=dataset.version)


def put(dataset: Dataset, upload: Upload, *, replace: bool = False, dry_run: bool = False) -> FillResult:
    """Fill a dataset for a caller that holds the lock of its row and raises its version. See `fill`."""
    refuse_elsewhere(dataset)
    refuse_too_many(upload)
    store = store_of(dataset)
    keyed = store.with_keys(validate_rows(upload, store.table), replace=replace)
    before = store.among(keyed)
    removed = [key for key in store.all_keys() if key not in keyed] if replace else []
    added = keyed.keys() - before.keys()
    number = store.number() + len(added) - len(removed)
    most = settings.ORCHESTRATOR_DATASET_ROWS
    if number > most:
        raise PipelineError(
            f"{dataset.name} would have {number:,} rows, but at most {most:,} are allowed.",
            code="dataset_full",
        )
    changed = {key: row for key, row in keyed.items() if before.get(key) != row}
    if (changed or removed) and not dry_run:
        store.write(changed, removed)
    return FillResult(len(added), len(changed) - len(added), len(removed), number, dataset.version)


def remove(tenant_id: UUID, dataset_id: UUID, key: str) -> None:
    """Remove a row. Raises `NotFound` if there is no such row, and `PipelineError` if the rows are stored elsewhere."""
    with tenant_scope(tenant_id):
        dataset = lock_dataset(tenant_id, dataset_id)
        refuse_elsewhere(dataset)
        store = store_of(dataset)
        if key not in store.among([key]):
            raise NotFound(f"row {key!r} of the dataset", dataset.name)
        store.write({}, [key])
        raise_version(dataset)


def number_of_rows(dataset: Dataset) -> int | None:
    """Return the number of rows, or None if they would have to be read for it. Call it within a `tenant_scope`."""
    return store_of(dataset).number() if dataset.source in (Source.DB, Source.CACHE) else None


def lock_dataset(tenant_id: UUID, dataset_id: UUID) -> Dataset:
    rows = Dataset.objects.for_tenant(tenant_id).select_for_update()
    dataset: Dataset = rows.get_or_raise(NotFound, "dataset", dataset_id)
    return dataset


def raise_version(dataset: Dataset, **changes: Any) -> None:
    Dataset.objects.for_tenant(dataset.tenant_id).filter(pk=dataset.pk).update(
        **changes, version=F("version") + 1, updated_at=Now()
    )
    dataset.refresh_from_db()


def refuse_elsewhere(dataset: Dataset) -> None:
    if dataset.source not in (Source.DB, Source.CACHE):
        where = "at its address" if dataset.source == Source.API else "in the tenant's folder on the server"
        raise PipelineError(
            f"The rows of {dataset.source}:{dataset.name} are {where}; they are read when a schedule runs.",
            code="rows_elsewhere",
        )


def refuse_not_listed(dataset: Dataset) -> None:
    """Raise `PipelineError` unless the rows are in the database."""
    if dataset.source == Source.CACHE:
        raise PipelineError(
            f"The rows of cache:{dataset.name} are kept in Redis; they are read when a schedule runs.",
            code="rows_elsewhere",
        )
    refuse_elsewhere(dataset)


# The stores of a dataset's rows: PostgreSQL, or Redis with an expiry. Both find rows by their keys.


BATCH = 1_000  # rows per statement


def rows_of(dataset: Dataset) -> Any:
    return DatasetRow.objects.for_tenant(dataset.tenant_id).filter(dataset_id=dataset.pk)


def store_of(dataset: Dataset) -> RowStore:
    kind = _CachedRows if dataset.source == Source.CACHE else _StoredRows
    return kind(dataset, tables.shape_of(dataset))


class RowStore(ABC):
    """Rows of a dataset, by their keys."""

    def __init__(self, dataset: Dataset, table: Table) -> None:
        self.dataset, self.table = dataset, table

    @abstractmethod
    def number(self) -> int:
        """Return the number of rows."""

    @abstractmethod
    def all_keys(self) -> list[str]:
        """Return all keys in the order of their rows."""

    @abstractmethod
    def among(self, keys: Iterable[str]) -> dict[str, Row]:
        """Return the rows with these keys."""

    @abstractmethod
    def write(self, changed: Mapping[str, Row], removed: Sequence[str]) -> None:
        """Add or change rows, and remove the rows with the keys in `removed`."""

    def with_keys(self, rows: list[Row], *, replace: bool) -> dict[str, Row]:
        """Return the rows by their keys. In a table without a key, the first new row replaces the first existing row, and so on."""
        if self.table.has_key:
            return {key_of(row, self.table): row for row in rows}
        existing = iter(self.all_keys() if replace else ())
        return {next(existing, None) or str(uuid7()): row for row in rows}


class _StoredRows(RowStore):
    def number(self) -> int:
        return int(rows_of(self.dataset).count())

    def all_keys(self) -> list[str]:
        return list(rows_of(self.dataset).order_by("id").values_list("key", flat=True))

    def among(self, keys: Iterable[str]) -> dict[str, Row]:
        own = rows_of(self.dataset)
        return {
            key: data
            for batch in _in_batches(list(keys))
            for key, data in own.filter(key__in=batch).values_list("key", "data")
        }

    def write(self, changed: Mapping[str, Row], removed: Sequence[str]) -> None:
        for batch in _in_batches(removed):
            rows_of(self.dataset).filter(key__in=batch).delete()
        ids = sorted(uuid7() for _ in changed)  # sorted, because ids of one millisecond are in random order
        new_rows = [
            DatasetRow(id=id_, tenant_id=self.dataset.tenant_id, dataset=self.dataset, key=key, data=row)
            for id_, (key, row) in zip(ids, changed.items(), strict=True)
        ]
        DatasetRow.objects.bulk_create(
            new_rows,
            batch_size=BATCH,
            update_conflicts=True,
            unique_fields=("dataset", "key"),
            update_fields=("data",),
        )


class _CachedRows(RowStore):
    """Rows in Redis, all in one value."""

    def number(self) -> int:
        return len(self._read_rows())

    def all_keys(self) -> list[str]:
        return list(self._read_rows())

    def among(self, keys: Iterable[str]) -> dict[str, Row]:
        rows = self._read_rows()
        return {key: rows[key] for key in keys if key in rows}

    def write(self, changed: Mapping[str, Row], removed: Sequence[str]) -> None:
        """Write the rows. If the transaction fails later, Redis keeps uncommitted rows until they expire."""
        rows = self._read_rows()
        for key in removed:
            rows.pop(key, None)
        rows.update(changed)
        fetched.keep_rows(self.dataset.tenant_id, self.dataset.name, list(rows.values()))

    def _read_rows(self) -> dict[str, Row]:
        rows = fetched.read_cached_rows(self.dataset.tenant_id, self.dataset.name) or []
        return {key_of(row, self.table) if self.table.has_key else str(n): row for n, row in enumerate(rows)}


def _in_batches(keys: Sequence[str]) -> Iterator[Sequence[str]]:
    return (keys[start : start + BATCH] for start in range(0, len(keys), BATCH))
