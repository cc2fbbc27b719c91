"""Loads documents with schedules and all that they need: agents, datasets with their rows, and pipelines.

    agents:     [{role, name, adapter, endpoint, description?, input_schema?}]     created if the role does not exist; never changed
    datasets:   [{name, fields, rows?, description?}]    rows: a list, or the name of a CSV in the same folder; they replace all others
    pipelines:  [a definition, as in a pipeline file]    a changed definition becomes a new version
    schedules:  [{name, ...}]                            as in the API; an existing schedule with this name is replaced

Everything of the tenant is loaded in one transaction. Loading a document a second time changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

from django.core.exceptions import ValidationError

from agents import configuration
from agents.models import Agent
from pipelines import datasets, versions
from pipelines.data_sources import Source
from pipelines.definition import DefinitionError, synonyms
from pipelines.definition.errors import InputError, at, quote_value
from pipelines.exceptions import PipelineError
from pipelines.models import Dataset, PipelineVersion, Schedule
from pipelines.schedules import editing
from tenants.context import tenant_scope

AGENT = ("role", "name", "description", "adapter", "endpoint", "model", "input_schema")
DATASET = ("name", "fields", "rows", "description")
PARTS = ("agents", "datasets", "pipelines", "schedules")


class InvalidDocument(DefinitionError):
    """The document cannot be loaded. `errors` lists everything that is wrong with its first invalid part."""

    code = "invalid_document"


def check(data: Mapping[str, Any]) -> None:
    """Check that a document has only these parts, each a list of objects. Raises `InvalidDocument`."""
    errors = [
        InputError(name, "is not a part of a document of schedules") for name in data if name not in PARTS
    ]
    for part in PARTS:
        items = data.get(part, [])
        if not isinstance(items, list):
            errors.append(InputError(part, f"must be a list, not {quote_value(items)}"))
            continue
        errors += [
            InputError(at(part, index), f"must be an object, not {quote_value(item)}")
            for index, item in enumerate(items)
            if not isinstance(item, Mapping)
        ]
    if errors:
        raise InvalidDocument(errors)


def make_agents(data: Mapping[str, Any]) -> Iterator[str]:
    """Create missing roles, and yield a line about each. Requires write access to the registry. Raises `InvalidDocument`."""
    errors: list[InputError] = []
    for index, item in enumerate(data.get("agents", [])):
        with _collect_errors(at("agents", index), errors):
            translation = synonyms.translate(item, synonyms.AGENT)
            _refuse_unknown(translation.data, AGENT)
            if translation.errors:
                raise DefinitionError(translation.errors)
            if Agent.objects.filter(role=translation.data.get("role")).exists():
                continue
            agent = Agent(**translation.data)
            try:
                agent.full_clean()
            except ValidationError as error:
                found = [InputError(name, " ".join(texts)) for name, texts in error.message_dict.items()]
                raise DefinitionError(translation.as_written(found)) from error
            agent.save(force_insert=True)
            configuration.forget()
            yield f"agent {agent.role}: created"
    if errors:
        raise InvalidDocument(errors)


def load(tenant_id: UUID, data: Mapping[str, Any], *, folder: Path, actor: str) -> list[str]:
    """Load a document's datasets, pipelines and schedules. Return a line about each. Raises `InvalidDocument`."""
    parts: tuple[tuple[str, Callable[[Any], str]], ...] = (
        ("datasets", lambda item: _load_dataset(tenant_id, item, folder)),
        ("pipelines", lambda item: _load_pipeline(tenant_id, item, actor)),
        ("schedules", lambda item: _load_schedule(tenant_id, item, actor)),
    )
    lines: list[str] = []
    with tenant_scope(tenant_id):
        for part, load_item in parts:
            errors: list[InputError] = []
            for index, item in enumerate(data.get(part, [])):
                with _collect_errors(at(part, index), errors):
                    lines.append(load_item(item))
            if errors:
                raise InvalidDocument(errors)
    return lines


def _load_dataset(tenant_id: UUID, item: Mapping[str, Any], folder: Path) -> str:
    _refuse_unknown(item, DATASET)
    rows = _rows(item.get("rows"), folder)
    name, fields = item.get("name", ""), item.get("fields", {})
    dataset = Dataset.objects.for_tenant(tenant_id).filter(name=name, source=Source.DB).first()
    if dataset is None:
        declaration = datasets.Declaration(name, fields, description=item.get("description", ""), rows=rows)
        datasets.create(tenant_id, declaration)
        return f"dataset {name}: created"
    if dataset.fields != fields:
        datasets.change(tenant_id, dataset.pk, fields=fields)
    if rows is not None:
        datasets.fill(tenant_id, dataset.pk, rows, replace=True)
    return f"dataset {name}: filled"


def _rows(rows: Any, folder: Path) -> datasets.Upload | None:
    """Read the rows in the document, or in the CSV that it names."""
    if rows is None:
        return None
    if not isinstance(rows, str):
        return datasets.Upload(rows if isinstance(rows, list) else [rows])
    if Path(rows).name != rows:
        raise InvalidDocument([InputError("rows", "must be the name of a file in the document's folder")])
    try:
        return datasets.read_csv((folder / rows).read_bytes())
    except OSError as error:
        raise InvalidDocument([InputError("rows", f"{rows} cannot be read: {error.strerror}")]) from error
    except datasets.BadUpload as error:
        raise InvalidDocument([InputError("rows", f"{rows}: {error}")]) from error


def _load_pipeline(tenant_id: UUID, item: Mapping[str, Any], actor: str) -> str:
    definition = versions.check_definition(tenant_id, dict(item))
    own = (
        PipelineVersion.objects.for_tenant(tenant_id).filter(pipeline__key=definition.key).order_by("-number")
    )
    digest, enabled = own.values_list("digest", "pipeline__enabled").first() or (None, None)
    if digest == definition.digest() and definition.enabled in (None, enabled):
        return f"pipeline {definition.key}: unchanged"
    version = versions.save(tenant_id, dict(item), actor=actor)
    return f"pipeline {definition.key}: version {version.number}"


def _load_schedule(tenant_id: UUID, item: Mapping[str, Any], actor: str) -> str:
    name = item.get("name")
    schedule = Schedule.objects.for_tenant(tenant_id).filter(name=str(name)).first()
    if schedule is None:
        editing.create(tenant_id, item, actor=actor)
        return f"schedule {name}: created"
    # The document replaces the schedule, as a PUT does, except that `enabled` may be left out.
    changed = editing.change(tenant_id, schedule.pk, item, actor=actor, whole=True)
    return f"schedule {name}: {'unchanged' if changed.version == schedule.version else 'changed'}"


def _refuse_unknown(item: Mapping[str, Any], known: tuple[str, ...]) -> None:
    if unknown := [name for name in item if name not in known]:
        raise InvalidDocument(InputError(at("", name), "is not a member of this object") for name in unknown)


@contextmanager
def _collect_errors(place: str, errors: list[InputError]) -> Iterator[None]:
    """Collect the errors of an item of the document, with its place before every path."""
    try:
        yield
    except DefinitionError as error:
        errors += [InputError(_join_path(place, problem.path), problem.message) for problem in error.errors]
    except PipelineError as error:
        errors.append(InputError(place, str(error)))


def _join_path(place: str, path: str) -> str:
    return f"{place}{path}" if path.startswith("[") else f"{place}.{path}" if path else place
