"""Checks a definition that is being edited, before anything is saved: its faults by path, its picture, and the other form of it.

The editor sends either the text or the list of steps and gets back both, so the browser needs to understand neither YAML nor the rules.
"""

from __future__ import annotations

from typing import Any
from uuid import UUID

from pipelines import versions
from pipelines.admin.definition_form import read
from pipelines.admin.pictures import framed
from pipelines.admin.writing import as_written
from pipelines.definition import DefinitionError
from pipelines.models import ActivityTemplate, Pipeline
from tenants.context import tenant_scope
from tenants.models import Tenant

NO_TENANT = "Choose the tenant first: templates are its own."


def check(text: str, *, tenant_id: UUID | None, pipeline_id: UUID | None) -> dict[str, Any]:
    """What the editor shows. Nothing is changed.

    `definition` and `text` are the same in two forms, null when the text cannot be read; `svg` is null while there are faults.
    """
    answer: dict[str, Any] = {"definition": None, "text": None, "faults": [], "svg": None, "templates": []}
    try:
        data = read(text)
        answer |= {"definition": data, "text": as_written(data)}
        if tenant_id is None or not Tenant.objects.filter(pk=tenant_id).exists():
            answer["faults"] = [{"path": "", "message": NO_TENANT}]
            return answer
        with tenant_scope(tenant_id):
            _check(data, answer, tenant_id=tenant_id, pipeline_id=pipeline_id)
    except DefinitionError as error:
        answer["faults"] = [{"path": fault.path, "message": fault.message} for fault in error.faults]
    return answer


def _check(
    data: dict[str, Any], answer: dict[str, Any], *, tenant_id: UUID, pipeline_id: UUID | None
) -> None:
    templates = {template.key: template for template in ActivityTemplate.objects.for_tenant(tenant_id)}
    answer["templates"] = sorted(templates)
    definition = versions.checked(data, templates)
    own = Pipeline.objects.for_tenant(tenant_id)
    present = own.filter(pk=pipeline_id).first() if pipeline_id else None
    if present is not None and present.key != definition.key:
        fault = f"must stay {present.key!r}; another key is another pipeline"
        answer["faults"] = [{"path": "key", "message": fault}]
    elif present is None and own.filter(key=definition.key).exists():
        answer["faults"] = [
            {"path": "key", "message": f"there is another pipeline {definition.key!r} already"}
        ]
    answer["svg"] = framed(definition, title=definition.name)
