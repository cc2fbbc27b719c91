"""Checks ids in request bodies: each must name an object of the tenant. An id of another tenant is as unknown as one of nobody.

A body may name objects of an app above the one that reads it, which must not import that app's models. So each app registers how its
objects are found.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from uuid import UUID

from tenants.models.base import TenantOwned

#: Returns those of the ids that exist at the tenant. Called in the tenant's `tenant_scope`.
Finder = Callable[[UUID, Collection[UUID]], Collection[UUID]]

_finders: dict[str, Finder] = {}


def provide(kind: str, finder: Finder) -> None:
    """Register how objects of this kind, such as "deliverable", are found. A finder of the same kind is replaced."""
    _finders[kind] = finder


def rows_of(model: type[TenantOwned]) -> Finder:
    """Return the finder for objects that are rows of a model."""

    def find(tenant_id: UUID, ids: Collection[UUID]) -> Collection[UUID]:
        rows = model._default_manager.filter(tenant_id=tenant_id, pk__in=ids)
        return set(rows.values_list("pk", flat=True))

    return find


def errors_of(tenant_id: UUID, kind: str, ids: Mapping[str, UUID | None]) -> list[tuple[str, str]]:
    """Return path and message of each unknown id; `ids` are by path. Must run in the tenant's `tenant_scope`."""
    named = {path: object_id for path, object_id in ids.items() if object_id is not None}
    if not named:
        return []
    existing = set(_finders[kind](tenant_id, set(named.values())))
    article = "an" if kind[0] in "aeiou" else "a"
    return [
        (path, f"is not {article} {kind} of this tenant")
        for path, object_id in named.items()
        if object_id not in existing
    ]
