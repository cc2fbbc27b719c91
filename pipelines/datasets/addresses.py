"""The places where rows of a dataset are kept here: PostgreSQL, or Redis for a while. Both are written and looked up by keys."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from pipelines import tables
from pipelines.data_sources import Source, Table
from pipelines.models import Dataset, DatasetRow
from pipelines.tables import fetched
from tenants.identifiers import uuid7

from .validation import Row, key_of

BATCH = 1_000  # rows per statement


def rows_of(dataset: Dataset) -> Any:
    return DatasetRow.objects.for_tenant(dataset.tenant_id).filter(dataset_id=dataset.pk)


def place_of(dataset: Dataset) -> DatasetAddress:
    kind = _Cached if dataset.source == Source.CACHE else _Stored
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


class _Stored(DatasetAddress):
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
        made = [
            DatasetRow(id=id_, tenant_id=self.dataset.tenant_id, dataset=self.dataset, key=key, data=row)
            for id_, (key, row) in zip(ids, fresh.items(), strict=True)
        ]
        DatasetRow.objects.bulk_create(
            made,
            batch_size=BATCH,
            update_conflicts=True,
            unique_fields=("dataset", "key"),
            update_fields=("data",),
        )


class _Cached(DatasetAddress):
    """Rows in Redis, all of them one value."""

    def number(self) -> int:
        return len(self._kept())

    def all_keys(self) -> list[str]:
        return list(self._kept())

    def among(self, keys: Iterable[str]) -> dict[str, Row]:
        kept = self._kept()
        return {key: kept[key] for key in keys if key in kept}

    def write(self, fresh: Mapping[str, Row], gone: Sequence[str]) -> None:
        """If the transaction fails behind this, Redis has rows that nobody was promised, until they expire."""
        left = self._kept()
        for key in gone:
            left.pop(key, None)
        left.update(fresh)
        fetched.keep_rows(self.dataset.tenant_id, self.dataset.name, list(left.values()))

    def _kept(self) -> dict[str, Row]:
        rows = fetched.cached_rows(self.dataset.tenant_id, self.dataset.name) or []
        return {key_of(row, self.table) if self.table.has_key else str(n): row for n, row in enumerate(rows)}


def _in_batches(keys: Sequence[str]) -> Iterator[Sequence[str]]:
    return (keys[start : start + BATCH] for start in range(0, len(keys), BATCH))
