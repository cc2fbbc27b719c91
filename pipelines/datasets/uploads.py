"""Rows in a file: CSV with a header, or JSON, a list of objects or `{rows: [...]}`."""

from __future__ import annotations

import io
from itertools import islice
from typing import Any

from django.conf import settings

from pipelines.exceptions import PipelineError
from pipelines.tables import BadTable, csv_lines
from tenants import strict_json

from .validation import Given

VALUES_PER_ROW = 101  # of JSON: as many as a table may have fields, and the row itself


class BadUpload(PipelineError):
    """The file holds no rows that can be read. Says where."""

    code = "invalid_file"
    status = 400


def read_csv(raw: bytes) -> Given:
    """The texts of a CSV. Raises `BadUpload`; the values are looked at by `fill`."""
    most = settings.ORCHESTRATOR_DATASET_ROWS_PER_CALL
    try:
        numbered = list(islice(csv_lines(io.BytesIO(raw)), most + 1))
    except BadTable as error:
        raise BadUpload(f"The CSV cannot be read: {error}.") from error
    return Given([row for _, row in numbered], [line for line, _ in numbered])


def read_json(raw: bytes) -> Given:
    """The rows of a JSON file. Raises `BadUpload`."""
    try:
        found = strict_json.loads(
            raw, max_bytes=settings.ORCHESTRATOR_DATASET_BODY_BYTES, max_nodes=most_values()
        )
    except strict_json.StrictJSONError as error:
        raise BadUpload(f"The JSON cannot be read: {error}.") from error
    return rows_in(found)


def rows_in(found: Any) -> Given:
    rows = found["rows"] if isinstance(found, dict) and found.keys() == {"rows"} else found
    if not isinstance(rows, list):
        raise BadUpload("The JSON must be a list of rows, or an object with the member rows.")
    return Given(rows)


def most_values() -> int:
    return int(settings.ORCHESTRATOR_DATASET_ROWS_PER_CALL) * VALUES_PER_ROW
