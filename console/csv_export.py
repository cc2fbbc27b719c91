"""What a page shows, as a file for a spreadsheet: the same rows, none of which a spreadsheet takes for a formula."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from typing import Any

from django.http import HttpResponse

#: A cell that begins so is computed by spreadsheets, whoever wrote it.
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def csv_of(name: str, heads: Sequence[str], rows: Iterable[Sequence[Any]]) -> HttpResponse:
    """The rows under their heads, as `name`.csv. Texts that would be formulas get an apostrophe in front."""
    sheet = io.StringIO()
    writer = csv.writer(sheet)
    writer.writerow(heads)
    writer.writerows([_cell(value) for value in row] for row in rows)
    answer = HttpResponse(sheet.getvalue(), content_type="text/csv; charset=utf-8")
    answer["Content-Disposition"] = f'attachment; filename="{name}.csv"'
    answer["X-Content-Type-Options"] = "nosniff"
    return answer


def _cell(value: Any) -> Any:
    if value is None:
        return ""
    if isinstance(value, str) and value.startswith(_FORMULA):
        return f"'{value}"
    return value.isoformat() if hasattr(value, "isoformat") else value
