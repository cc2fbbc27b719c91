"""Rows in the body of a request: as JSON, as CSV, or as a file of either in a form.

What comes out is plain JSON data whichever it was, so that an Idempotency-Key recognises the same rows again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.http.multipartparser import MultiPartParserError
from rest_framework.parsers import BaseParser, MultiPartParser

from pipelines import datasets
from pipelines.datasets import Given
from tenants.api.faults import InvalidRequest
from tenants.api.parsers import BodyTooLarge, body_limit

CSV = "text/csv"
FILE = "file"  # the field of the form
TEXTS = "texts"  # stands for the rows of a CSV


class CsvParser(BaseParser):
    """Reads `text/csv`: UTF-8, a header, quotes as in RFC 4180."""

    media_type = CSV

    def parse(
        self, stream: Any, media_type: str | None = None, parser_context: Mapping[str, Any] | None = None
    ) -> Any:
        limit = body_limit((parser_context or {}).get("view"))
        return _plain(datasets.read_csv(_within(stream.read(limit + 1), limit)))


class FileParser(MultiPartParser):
    """Reads a form with one file, whose name ends with .csv or .json, or whose type says which it is."""

    def parse(
        self, stream: Any, media_type: str | None = None, parser_context: Mapping[str, Any] | None = None
    ) -> Any:
        limit = body_limit((parser_context or {}).get("view"))
        try:
            form = super().parse(stream, media_type, parser_context)
        except MultiPartParserError as error:
            raise InvalidRequest([("", "the form cannot be read")]) from error
        faults = [
            (name, "is not a member of this form") for name in (*form.data, *form.files) if name != FILE
        ]
        if FILE not in form.files:
            faults.append((FILE, "is required: a file of CSV or JSON"))
        elif len(form.files.getlist(FILE)) > 1:
            faults.append((FILE, "is given more than once"))
        if faults:
            raise InvalidRequest(faults)
        file: Any = form.files[FILE]
        raw = _within(file.read(limit + 1), limit)
        kind = _kind_of(file)
        return _plain(datasets.read_csv(raw)) if kind == CSV else {"rows": datasets.read_json(raw).rows}


def given_in(data: Any) -> Given:
    """The rows of a body that one of the parsers, or that for JSON, has read."""
    if isinstance(data, dict) and data.keys() == {TEXTS}:
        return Given([row for _, row in data[TEXTS]], [line for line, _ in data[TEXTS]])
    if isinstance(data, dict) and data.keys() - {"rows"}:
        raise InvalidRequest([(name, "is not a member of this object") for name in data if name != "rows"])
    if isinstance(data, dict) and not isinstance(data.get("rows"), list):
        raise InvalidRequest([("rows", "must be a list of objects")])
    return Given(data if isinstance(data, list) else data["rows"])


def _plain(given: Given) -> dict[str, Any]:
    return {TEXTS: [[line, row] for line, row in zip(given.lines, given.rows, strict=True)]}


def _kind_of(file: Any) -> str:
    name = str(file.name or "").lower()
    if name.endswith(".csv"):
        return CSV
    if name.endswith(".json"):
        return "application/json"
    if file.content_type in (CSV, "application/json"):
        return str(file.content_type)
    raise InvalidRequest([(FILE, "must be a .csv or .json file")])


def _within(raw: bytes, limit: int) -> bytes:
    if len(raw) > limit:
        raise BodyTooLarge(f"The body may have {limit} bytes at most.")
    return raw
