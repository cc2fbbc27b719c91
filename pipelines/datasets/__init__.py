"""A tenant's own tables: declared, changed, filled, emptied and deleted, by the API and the admin alike.

declaration  the table itself: its name, where its rows are, the types of its fields
rows         its rows: added, changed, replaced and removed, all of a call or nothing, in PostgreSQL or Redis
validation   rows as a caller gives them, and whether they fit
"""

from pipelines.datasets.validation import BadUpload, read_csv, read_json

from .declaration import Declaration, change, create, delete, error_of_location, schedules_reading
from .rows import FillResult, fill, number_of_rows, refuse_not_listed, remove
from .validation import RowsInvalid, Upload
