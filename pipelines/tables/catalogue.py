"""The tables of a tenant with their fields' types, by source."""

from __future__ import annotations

from uuid import UUID

from pipelines.data_sources import Catalogue, Source, Table
from pipelines.models import Dataset
from pipelines.tables import declared
from pipelines.tables.stored import shape_of
from tenants.context import tenant_scope


def catalogue_of(tenant_id: UUID) -> Catalogue:
    """Everything that the tenant's data sources may name. A dataset hides a declared table of the same name."""
    found: dict[Source, dict[str, Table]] = {source: {} for source in Source}
    found[Source.DB].update({name: table.shape for name, table in declared.TABLES.items()})
    with tenant_scope(tenant_id):
        for dataset in Dataset.objects.for_tenant(tenant_id):
            found[Source(dataset.source)][dataset.name] = shape_of(dataset)
    return found
