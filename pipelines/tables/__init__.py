"""What data sources may read: a tenant's own datasets, and the few tables of the platform that are declared here.

Everything is read a page at a time in a lasting order, in short transactions of the tenant, so ten thousand rows need no more
memory than a page and no table is held. What comes out are JSON values of the fields' types: nobody outside sees a model,
a cursor or an answer of the network.

    catalogue_of(tenant_id)           the tables with their fields' types, for `data_sources.check` and `resolve`
    values_of(tenant_id, query)       the values of a query, to be gone through as often as needed, and how many they are

Nothing is read before the values are gone through or counted; then what cannot be had raises `SourceUnavailable`. Sources
`api`, `file` and `cache` wait for others: go through their values outside of transactions.
"""

from pipelines.tables.fetched import BadTable, csv_lines
from pipelines.tables.queries import Values, catalogue_of, plain, rows_of, values_of
from pipelines.tables.relations import shape_of

__all__ = ("BadTable", "Values", "catalogue_of", "csv_lines", "plain", "rows_of", "shape_of", "values_of")
