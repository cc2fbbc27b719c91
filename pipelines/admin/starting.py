"""Starting a run by hand, with the parameters that somebody typed."""

from __future__ import annotations

from typing import Any

from pipelines.exceptions import PipelineError
from pipelines.models import Pipeline, PipelineRun
from pipelines.submission import NewRun, start_run
from tenants import strict_json

LONGEST_PARAMS = 100_000  # bytes


class ParamsInvalid(PipelineError):
    """What was typed as parameters is no JSON object."""

    code = "validation_failed"
    status = 400


def start(pipeline: Pipeline, typed: str, *, actor: str) -> PipelineRun:
    """Start the newest version. Raises `ParamsInvalid`, or what `start_run` raises."""
    return start_run(pipeline.tenant_id, pipeline.key, NewRun(params=_params(typed)), actor=actor)


def _params(typed: str) -> dict[str, Any]:
    if not typed.strip():
        return {}
    try:
        found = strict_json.loads(typed.encode(), max_bytes=LONGEST_PARAMS)
    except strict_json.StrictJSONError as error:
        raise ParamsInvalid(f"The parameters are not valid JSON: {error.message}") from error
    if not isinstance(found, dict):
        raise ParamsInvalid('The parameters must be an object, such as {"topic": "bees"}.')
    return found
