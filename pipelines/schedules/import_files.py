"""Documents that bring schedules with all that they need: agents, tables with their rows, pipelines.

    agents:     [{role, name, adapter, endpoint, description?, input_schema?}]     made if the registry has no such role; never changed
    datasets:   [{name, fields, rows?, description?}]    rows: a list, or the name of a CSV beside the document; they replace the others
    pipelines:  [a definition, as in a pipeline file]    a changed one becomes a new version
    schedules:  [{name, ...}]                            as the API has them; one of the same name is changed to what is said here

Everything of the tenant is loaded in one transaction, or nothing. Loading a document twice changes nothing the second time.
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
from pipelines.models import ActivityTemplate, Dataset, PipelineVersion, Schedule
from tenants.context import tenant_scope

from . import editing

AGENT = ("role", "name", "description", "adapter", "endpoint", "model", "input_schema")
DATASET = ("name", "fields", "rows", "description")
PARTS = ("agents", "datasets", "pipelines", "schedules")


class InvalidDocument(DefinitionError):
    """The document cannot be loaded. `errors` names everything that is wrong with the first part that is wrong."""

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
    """Create the roles that the registry lacks; yields a line about each. Needs to write the registry. Raises `InvalidDocument`."""
    for index, item in enumerate(data.get("agents", [])):
        place = at("agents", index)
        spelled = synonyms.translate(item, synonyms.AGENT)
        with _errors_below(place):
            _refuse_unknown(spelled.data, AGENT, "")
            if spelled.errors:
                raise DefinitionError(spelled.errors)
        if Agent.objects.filter(role=spelled.data.get("role")).exists():
            continue
        agent = Agent(**spelled.data)
        try:
            agent.full_clean()
        except ValidationError as error:
            errors = (InputError(name, " ".join(texts)) for name, texts in error.message_dict.items())
            raise InvalidDocument(
                InputError(_join_path(place, problem.path), problem.message)
                for problem in spelled.as_written(errors)
            ) from error
        agent.save(force_insert=True)
        configuration.forget()
        yield f"agent {agent.role}: made"


def load(tenant_id: UUID, data: Mapping[str, Any], *, folder: Path, actor: str) -> list[str]:
    """Create or change a tenant's tables, pipelines and schedules as a document says; a line about each. Raises `InvalidDocument`."""
    parts: tuple[tuple[str, Callable[[Any], str]], ...] = (
        ("datasets", lambda item: _load_dataset(tenant_id, item, folder)),
        ("pipelines", lambda item: _load_pipeline(tenant_id, item, actor)),
        ("schedules", lambda item: _load_schedule(tenant_id, item, actor)),
    )
    lines: list[str] = []
    with tenant_scope(tenant_id):
        for part, loaded in parts:
            for index, item in enumerate(data.get(part, [])):
                with _errors_below(at(part, index)):
                    lines.append(loaded(item))
    return lines


def _load_dataset(tenant_id: UUID, item: Mapping[str, Any], folder: Path) -> str:
    _refuse_unknown(item, DATASET, "")
    rows = _rows(item.get("rows"), folder)
    name, fields = item.get("name", ""), item.get("fields", {})
    found = Dataset.objects.for_tenant(tenant_id).filter(name=name, source=Source.DB).first()
    if found is None:
        declaration = datasets.Declaration(name, fields, description=item.get("description", ""), rows=rows)
        datasets.create(tenant_id, declaration)
        return f"dataset {name}: made"
    if found.fields != fields:
        datasets.change(tenant_id, found.pk, fields=fields)
    if rows is not None:
        datasets.fill(tenant_id, found.pk, rows, replace=True)
    return f"dataset {name}: filled"


def _rows(rows: Any, folder: Path) -> datasets.Upload | None:
    """Rows as they stand in the document, or those of the CSV that it names."""
    if rows is None:
        return None
    if not isinstance(rows, str):
        return datasets.Upload(rows if isinstance(rows, list) else [rows])
    if Path(rows).name != rows:
        raise InvalidDocument([InputError("rows", "must be the name of a file beside the document")])
    try:
        return datasets.read_csv((folder / rows).read_bytes())
    except OSError as error:
        raise InvalidDocument([InputError("rows", f"{rows} cannot be read: {error.strerror}")]) from error
    except datasets.BadUpload as error:
        raise InvalidDocument([InputError("rows", f"{rows}: {error}")]) from error


def _load_pipeline(tenant_id: UUID, item: Mapping[str, Any], actor: str) -> str:
    templates = {template.key: template for template in ActivityTemplate.objects.for_tenant(tenant_id)}
    definition = versions.check_definition(tenant_id, dict(item), templates)
    own = (
        PipelineVersion.objects.for_tenant(tenant_id).filter(pipeline__key=definition.key).order_by("-number")
    )
    if own.values_list("digest", flat=True).first() == definition.digest():
        return f"pipeline {definition.key}: as it was"
    version = versions.save(tenant_id, dict(item), actor=actor)
    return f"pipeline {definition.key}: version {version.number}"


def _load_schedule(tenant_id: UUID, item: Mapping[str, Any], actor: str) -> str:
    name = item.get("name")
    found = Schedule.objects.for_tenant(tenant_id).filter(name=str(name)).first()
    if found is None:
        editing.create(tenant_id, item, actor=actor)
        return f"schedule {name}: made"
    # What the document says is the whole of it, as for a PUT; whether it is switched on may be left to people.
    changed = editing.change(tenant_id, found.pk, item, actor=actor, whole=True)
    return f"schedule {name}: {'as it was' if changed.version == found.version else 'changed'}"


def _refuse_unknown(item: Mapping[str, Any], known: tuple[str, ...], place: str) -> None:
    errors = [
        InputError(at(place, name), "is not a member of this object") for name in item if name not in known
    ]
    if errors:
        raise InvalidDocument(errors)


@contextmanager
def _errors_below(place: str) -> Iterator[None]:
    """Name every error by its path in the document."""
    try:
        yield
    except DefinitionError as error:
        raise InvalidDocument(
            InputError(_join_path(place, problem.path), problem.message) for problem in error.errors
        ) from error
    except PipelineError as error:
        raise InvalidDocument([InputError(place, str(error))]) from error


def _join_path(place: str, path: str) -> str:
    return f"{place}{path}" if path.startswith("[") else f"{place}.{path}" if path else place
