"""Reads rows from JSON or a CSV file, and checks them against their table.

Reports all errors of all rows, up to a readable number.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from django.conf import settings

from pipelines.data_sources import RowError, Table, read_row, read_table
from pipelines.definition.errors import DefinitionError, InputError, at, quote_value
from pipelines.definition.reading import number
from pipelines.exceptions import PipelineError
from pipelines.tables import BadTable, csv_lines, plain
from tenants import strict_json

MOST_ERRORS = 50
LONGEST_KEY = 200  # characters
ROWS = "rows"

Row = dict[str, Any]


class RowsInvalid(DefinitionError):
    """Some rows do not fit their table, so nothing was stored. `errors` lists each error with its path."""

    code = "invalid_rows"


@dataclass(frozen=True, slots=True)
class Upload:
    """Unchecked rows: JSON values, or the texts of a CSV with the line of each row."""

    rows: Sequence[Any]
    lines: Sequence[int] = ()

    @property
    def are_texts(self) -> bool:
        return bool(self.lines)


def refuse_too_many(upload: Upload) -> None:
    """Raise `PipelineError` for more rows than one call may bring."""
    most = settings.ORCHESTRATOR_DATASET_ROWS_PER_CALL
    if len(upload.rows) > most:
        raise PipelineError(f"One call may bring at most {most:,} rows.", code="too_many_rows", status=413)


def validate_rows(upload: Upload, table: Table) -> list[Row]:
    """Return the rows with every field, as they are stored. Raises `RowsInvalid`."""
    if upload.are_texts:
        _refuse_header(upload.rows[0], table)
    rows: list[Row] = []
    errors: list[InputError] = []
    places: dict[str, int] = {}
    for place, raw in enumerate(upload.rows):
        line = f" (line {upload.lines[place]})" if upload.are_texts else ""
        row, row_errors = _read(raw, table, at(ROWS, place), line, as_text=upload.are_texts)
        if row is not None and table.has_key:
            row_errors += _errors_of_key(row, table, place, places, line)
        if row is not None:
            rows.append(row)
        errors += row_errors
        if len(errors) >= MOST_ERRORS:
            errors = [
                *errors[:MOST_ERRORS],
                InputError(ROWS, f"there may be more: only the first {MOST_ERRORS} errors are listed"),
            ]
            break
    if errors:
        raise RowsInvalid(errors)
    return rows


def check_fields(name: str, fields: Any, upload: Upload | None) -> None:
    """Check the fields of a table, and rows if there are any. Raises `TableError` or `RowsInvalid`."""
    table = read_table(name, fields)
    if upload is not None:
        validate_rows(upload, table)


def key_of(row: Row, table: Table) -> str:
    """Return the row's key as text: 5 is "5", true is "true"."""
    value = row[table.key]
    return str(value).lower() if isinstance(value, bool) else str(value)


def storable(value: Any) -> Any:
    """Return a typed value as it is stored: a time as text, and a number in one form, so that equal numbers are stored alike."""
    return plain(value) if isinstance(value, bool) or not isinstance(value, int | float) else number(value)


def _read(
    raw: Any, table: Table, path: str, line: str, *, as_text: bool
) -> tuple[Row | None, list[InputError]]:
    if not isinstance(raw, Mapping):
        return None, [InputError(path, f"must be an object, not {quote_value(raw)}")]
    try:
        row = read_row(raw, table, as_text=as_text)
    except RowError as error:
        return None, list(_name_errors(error, table, path, line))
    return {name: storable(value) for name, value in row.items()}, []


def _name_errors(error: RowError, table: Table, path: str, line: str) -> Iterator[InputError]:
    for field, message in error.errors.items():
        # The name of an unknown field is quoted already.
        known = field in table.fields
        yield InputError(at(path, field) if known else path, f"{'' if known else f'{field} '}{message}{line}")


def _errors_of_key(row: Row, table: Table, place: int, places: dict[str, int], line: str) -> list[InputError]:
    key, path = key_of(row, table), at(at(ROWS, place), table.key)
    if len(key) > LONGEST_KEY:
        return [InputError(path, f"must have at most {LONGEST_KEY} characters{line}")]
    if places.setdefault(key, place) != place:
        return [InputError(path, f"is the same as in rows[{places[key]}]{line}")]
    return []


def _refuse_header(row: Mapping[str, Any], table: Table) -> None:
    """Report errors of the header once, because they would recur in every row."""
    errors = [
        InputError(ROWS, f"{quote_value(name)} is not a field of this table (line 1)")
        for name in row
        if name not in table.fields
    ]
    if table.has_key and table.key not in row:
        errors.append(InputError(ROWS, f"the field {table.key} is missing: it identifies the rows (line 1)"))
    if errors:
        raise RowsInvalid(errors[:MOST_ERRORS])


# Rows in a file: CSV with a header, or JSON, a list of objects or `{rows: [...]}`.


VALUES_PER_ROW = 101  # of JSON: the fields of the largest table, and the row itself


class BadUpload(PipelineError):
    """The file has no readable rows. The message says where."""

    code = "invalid_file"
    status = 400


def read_csv(raw: bytes) -> Upload:
    """Read the texts of a CSV. Raises `BadUpload`. `fill` checks the values."""
    most = settings.ORCHESTRATOR_DATASET_ROWS_PER_CALL
    try:
        numbered = list(islice(csv_lines(io.BytesIO(raw)), most + 1))
    except BadTable as error:
        raise BadUpload(f"The CSV cannot be read: {error}.") from error
    return Upload([row for _, row in numbered], [line for line, _ in numbered])


def read_json(raw: bytes) -> Upload:
    """Read the rows of a JSON file. Raises `BadUpload`."""
    try:
        data = strict_json.loads(
            raw, max_bytes=settings.ORCHESTRATOR_DATASET_BODY_BYTES, max_nodes=most_values()
        )
    except strict_json.StrictJSONError as error:
        raise BadUpload(f"The JSON cannot be read: {error}.") from error
    rows = data["rows"] if isinstance(data, dict) and data.keys() == {"rows"} else data
    if not isinstance(rows, list):
        raise BadUpload("The JSON must be a list of rows, or an object with the member rows.")
    return Upload(rows)


def most_values() -> int:
    return int(settings.ORCHESTRATOR_DATASET_ROWS_PER_CALL) * VALUES_PER_ROW
