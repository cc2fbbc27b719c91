"""Definitions of pipelines, and the errors that parsing them reports."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import settings

from pipelines.definition import DefinitionError, PipelineDefinition, parse

steady = settings(deadline=None, derandomize=True, max_examples=80)
ROLES = ("keyword-researcher", "content-brief-writer", "blog-writer")
TEMPLATES = ("audit",)


def read(data: Any, **options: Any) -> PipelineDefinition:
    return parse(data, known_roles=ROLES, known_templates=TEMPLATES, **options)


def agent(id_: str, /, **more: Any) -> dict[str, Any]:
    return {"id": id_, "agent_role": "blog-writer", **more}


def pipeline(*steps: Any, **more: Any) -> dict[str, Any]:
    return {"key": "k", "name": "N", "steps": list(steps), **more}


def errors_of(data: Any, **options: Any) -> dict[str, str]:
    return errors_when(lambda: read(data, **options))


def errors_when(action: Callable[[], object]) -> dict[str, str]:
    with pytest.raises(DefinitionError) as caught:
        action()
    return {error.path: error.message for error in caught.value.errors}
