"""A tenant's own tables: created, changed, filled and deleted, by the API and the admin alike.

declaration  the table itself: its name, the source of its rows, the types of its fields
rows         adds, changes, replaces and removes rows in PostgreSQL or Redis; a call succeeds as a whole or not at all
validation   checks rows against their table
"""

from pipelines.datasets.declaration import (
    Declaration,
    change,
    create,
    delete,
    error_of_location,
    schedules_reading,
)
from pipelines.datasets.rows import FillResult, fill, number_of_rows, refuse_not_listed, remove
from pipelines.datasets.validation import BadUpload, RowsInvalid, Upload, check_fields, read_csv, read_json
