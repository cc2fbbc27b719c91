"""Rows from a file: looked at first, then stored. Between the two the file is kept for a while, for this person and dataset alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse

from pipelines import datasets
from pipelines.admin import kept_files
from pipelines.datasets import Filled, Given
from pipelines.definition.faults import DefinitionError
from pipelines.exceptions import PipelineError
from pipelines.models import Dataset
from tenants.admin.bases import page_of

FIRST_ROWS = 20
TEMPLATE = "admin/pipelines/dataset/upload.html"
Done = Callable[[HttpRequest, Dataset, str], HttpResponse]


@dataclass(frozen=True, slots=True)
class Preview:
    """What would be stored."""

    outcome: str
    names: list[str]
    rows: list[list[Any]]
    number: int
    kept: str


class _Refused(Exception):
    """The file was not even looked at."""


def page(request: HttpRequest, dataset: Dataset, context: dict[str, Any], *, done: Done) -> HttpResponse:
    """The page that takes a file, shows what it would do, and does it."""
    replace = "replace" in request.POST
    shown: dict[str, Any] = {
        "dataset": dataset, "replace": replace, "action": request.path, "title": f"Upload rows to {dataset}",
        "came_from": page_of(Dataset, dataset.pk),
    }  # fmt: skip
    if request.method == "POST":
        try:
            if "store" in request.POST:
                raw, name = _kept(request, dataset)
                filled = datasets.fill(dataset.tenant_id, dataset.pk, _read(raw, name), replace=replace)
                return done(request, dataset, _in_words(filled, "were"))
            shown["preview"] = _preview(request, dataset, replace)
        except DefinitionError as error:
            shown["faults"] = error.faults
        except (PipelineError, _Refused) as error:
            shown["refusal"] = str(error)
    return TemplateResponse(request, TEMPLATE, {**context, **shown})


def _preview(request: HttpRequest, dataset: Dataset, replace: bool) -> Preview:
    file = request.FILES.get("file")
    if file is None:
        raise _Refused("Choose a file.")
    most = settings.ORCHESTRATOR_DATASET_BODY_BYTES
    if (file.size or 0) > most:
        raise _Refused(f"The file has {file.size:,} bytes; {most:,} are taken at most.")
    raw, name = file.read(), str(file.name)
    given = _read(raw, name)
    filled = datasets.fill(dataset.tenant_id, dataset.pk, given, replace=replace, dry_run=True)
    names = list(dataset.fields)
    rows = [[row.get(field) for field in names] for row in given.rows[:FIRST_ROWS]]
    kept = kept_files.keep(_owner(request, dataset), name, raw)
    return Preview(_in_words(filled, "would be"), names, rows, len(given.rows), kept)


def _kept(request: HttpRequest, dataset: Dataset) -> tuple[bytes, str]:
    found = kept_files.kept(_owner(request, dataset), request.POST.get("kept", ""))
    if found is None:
        raise _Refused("The file is no longer there. Choose it again.")
    return found


def _owner(request: HttpRequest, dataset: Dataset) -> str:
    return f"{request.user.pk}:{dataset.pk}"


def _read(raw: bytes, name: str) -> Given:
    if name.lower().endswith(".csv"):
        return datasets.read_csv(raw)
    if name.lower().endswith(".json"):
        return datasets.read_json(raw)
    raise _Refused("The name of the file must end with .csv or .json.")


def _in_words(filled: Filled, verb: str) -> str:
    return f"{filled.added:,} rows {verb} added, {filled.updated:,} changed and {filled.removed:,} removed; {filled.rows:,} in all."
