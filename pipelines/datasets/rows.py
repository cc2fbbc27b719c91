"""The rows of a dataset: added, changed, replaced and removed. Everything of a call happens, or nothing.

A row that is there keeps its place when it is changed or replaced, so whoever reads page by page meanwhile sees no row twice.
Writers of one dataset wait for each other at its row.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from django.conf import settings
from django.db.models import F
from django.db.models.functions import Now

from pipelines.data_sources import Source
from pipelines.exceptions import DatasetFull, NotFound, RowsElsewhere
from pipelines.models import Dataset
from tenants.context import tenant_scope

from .addresses import place_of
from .validation import Given, fitting, refuse_too_many


@dataclass(frozen=True, slots=True)
class Filled:
    """What came of a call. `rows` is how many there are now, `version` that of the dataset."""

    added: int
    updated: int
    removed: int
    rows: int
    version: int

    @property
    def changed(self) -> bool:
        return bool(self.added or self.updated or self.removed)


def fill(
    tenant_id: UUID, dataset_id: UUID, given: Given, *, replace: bool = False, dry_run: bool = False
) -> Filled:
    """Add the rows, or change those with the same `id`; with `replace`, remove all others. A `dry_run` only tells what would be.

    Raises `RowsInvalid`, `TooManyRows`, `DatasetFull`, `NotFound` and, where rows are not kept here, `RowsElsewhere`.
    """
    with tenant_scope(tenant_id):
        dataset = locked(tenant_id, dataset_id)
        done = put(dataset, given, replace=replace, dry_run=dry_run)
        if done.changed and not dry_run:
            raise_version(dataset)
        return dataclasses.replace(done, version=dataset.version)


def put(dataset: Dataset, given: Given, *, replace: bool = False, dry_run: bool = False) -> Filled:
    """As `fill`, for who holds the dataset's row already and raises its version."""
    refuse_elsewhere(dataset)
    refuse_too_many(given)
    place = place_of(dataset)
    keyed = place.with_keys(fitting(given, place.table), replace=replace)
    before = place.among(keyed)
    gone = [key for key in place.all_keys() if key not in keyed] if replace else []
    added = keyed.keys() - before.keys()
    number = place.number() + len(added) - len(gone)
    _refuse_full(dataset, number)
    fresh = {key: row for key, row in keyed.items() if before.get(key) != row}
    if (fresh or gone) and not dry_run:
        place.write(fresh, gone)
    return Filled(len(added), len(fresh) - len(added), len(gone), number, dataset.version)


def remove(tenant_id: UUID, dataset_id: UUID, key: str) -> None:
    """Raises `NotFound` when there is no such row, and `RowsElsewhere`."""
    with tenant_scope(tenant_id):
        dataset = locked(tenant_id, dataset_id)
        refuse_elsewhere(dataset)
        place = place_of(dataset)
        if key not in place.among([key]):
            raise NotFound(f"row {key!r} of the dataset", dataset.name)
        place.write({}, [key])
        raise_version(dataset)


def number_of_rows(dataset: Dataset) -> int | None:
    """How many there are; None where that would mean to read them. In the caller's scope."""
    return place_of(dataset).number() if dataset.source in (Source.DB, Source.CACHE) else None


def locked(tenant_id: UUID, dataset_id: UUID) -> Dataset:
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
