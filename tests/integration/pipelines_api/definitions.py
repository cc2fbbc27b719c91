"""Definitions of pipelines, and the paths of errors in a response."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.answers import problem

TEMPLATES, PIPELINES, RUNS = "/api/v1/templates/", "/api/v1/pipelines/", "/api/v1/pipeline-runs/"
EXAMPLE = Path(__file__).parents[3] / "examples" / "pipelines" / "content-brief.yaml"


def definition(key: str = "flow", **members: Any) -> dict[str, Any]:
    steps = [{"id": "a", "agent_role": "qa", "name": "First"}, {"id": "b", "agent_role": "qa"}]
    return {"key": key, "name": "Flow", "steps": steps, **members}


def paths(response: Any, code: str = "validation_failed") -> set[str]:
    return {fault["path"] for fault in problem(response, 400, code)["errors"]}
