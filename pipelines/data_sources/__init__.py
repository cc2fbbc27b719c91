"""Data source strings: parameters that stand for rows of a table, and are expanded into jobs.

    <source>:<table>:<filter>:<field>[?<options>]

    db:ticker:all:id?enabled=true&batchSize=10&staggerDelay=1000
    db:ticker:AAPL:id
    db:user:all:id,email?filter={"active":true,"createdAt":{"$gte":"2024-01-01"}}

Pure, and the only way from such a text to a query. A query holds only names from the catalogue and values of the
fields' types, so the code that reads a source need not quote or check anything again.

source   db, api, file or cache.
table    A name of the catalogue: letters, digits, single _ and -.
filter   `all`, or one value of the table's key. Write %61ll for a key that is the word all.
field    One field, whose value a job gets; or several with commas, which a job gets as an object.
options  name=value pairs joined by &, each name once:
         batchSize, staggerDelay (ms)       how jobs are spread over time
         expand=product|zip                 how several parameters with sources are combined
         batch_gate=delay|completion        what a batch waits for
         limit                              the largest number of rows
         filter=<JSON>                      conditions with types and operators
         any other name                     a condition: that field equals that value
         All conditions must hold. For a field with the name of an option, use the JSON filter.

**Escaping.** A value may hold letters and digits of any language, - . _ ~ @ + and the comma, and after the ? a colon. Everything
else is percent-encoded as UTF-8, including a space (%20); a plus is a plus. The JSON of `filter` may be written unencoded:
it ends with its closing brace, and nothing in it is decoded. Or all of it is percent-encoded, beginning with %7B.

**JSON filter.** {"field": value} or {"field": {"$gte": value, "$lt": value}}. Operators: $eq $ne $gt $gte $lt $lte $in $nin
$exists. `query.matches` defines what each means when a row has no value.

**Plain text.** A text is a data source if it begins with a source's name and a colon, no blank or slash follows, and
there is another colon; then it must be valid. Any other text is used unchanged. A backslash before a data source makes
it plain text, and is removed.
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
