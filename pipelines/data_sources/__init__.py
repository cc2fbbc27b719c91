"""Data source strings: how a parameter says which rows of a table it stands for, and how many jobs come of it.

    <source>:<table>:<filter>:<field>[?<options>]

    db:ticker:all:id?enabled=true&batchSize=10&staggerDelay=1000
    db:ticker:AAPL:id
    db:user:all:id,email?filter={"active":true,"createdAt":{"$gte":"2024-01-01"}}

Pure, and the only way from such a text to a query: what comes out is names that the catalogue holds and values of
the fields' types. The code that reads a source need not quote or check anything again.

source   db, api, file or cache.
table    A name of the catalogue: letters, digits, single _ and -.
filter   `all`, or one value of the table's key. A key that is the word all is written %61ll.
field    One field, whose value a job gets; or several with commas, of which it gets an object.
options  name=value pairs joined by &, each name once:
         batchSize, staggerDelay (ms)       how jobs are spread over time
         expand=product|zip                 how several parameters with sources are combined
         batch_gate=delay|completion        what a batch waits for
         limit                              how many rows are taken at most
         filter=<JSON>                      conditions with types and operators
         any other name                     a condition: that field equals that value
         All conditions must hold. A field that has the name of an option is reached by the JSON filter only.

**Escaping.** A value may hold letters and digits of any language and - . _ ~ @ + , and, behind the ?, a colon. Everything
else is percent-encoded as UTF-8, also a space (%20); a plus is a plus. The JSON of `filter` may be written as it is:
it ends with its closing brace, and nothing in it is decoded. Or it is percent-encoded as a whole, beginning with %7B.

**JSON filter.** {"field": value} or {"field": {"$gte": value, "$lt": value}}. Operators: $eq $ne $gt $gte $lt $lte $in $nin
$exists. See `query.matches` for what each means when a row has no value.

**What is not a data source.** Text is taken for one if it begins with a source's name and a colon, no blank or slash
follows, and there is one more colon; then it has to be right. Any other text is used as it is. A backslash before what
would be a data source makes it plain text, without the backslash.
"""

from pipelines.data_sources.catalogue import (
    Catalogue,
    FieldType,
    RowError,
    Table,
    TableError,
    read_row,
    read_table,
)
from pipelines.data_sources.expand import (
    Batch,
    Dimension,
    Estimate,
    ExpansionError,
    Pacing,
    Params,
    ParamsError,
    agree,
    batches,
    estimate,
    inputs,
    read_params,
)
from pipelines.data_sources.parsing import looks_like, parse, unescape
from pipelines.data_sources.query import Query, check, matches, resolve
from pipelines.data_sources.shapes import (
    BatchGate,
    Condition,
    DataSource,
    DataSourceError,
    Expand,
    Filter,
    InputError,
    Operator,
    Options,
    Source,
)

__all__ = (
    "Batch",
    "BatchGate",
    "Catalogue",
    "Condition",
    "DataSource",
    "DataSourceError",
    "Dimension",
    "Estimate",
    "Expand",
    "ExpansionError",
    "FieldType",
    "Filter",
    "InputError",
    "Operator",
    "Options",
    "Pacing",
    "Params",
    "ParamsError",
    "Query",
    "RowError",
    "Source",
    "Table",
    "TableError",
    "agree",
    "batches",
    "check",
    "estimate",
    "inputs",
    "looks_like",
    "matches",
    "parse",
    "read_params",
    "read_row",
    "read_table",
    "resolve",
    "unescape",
)
