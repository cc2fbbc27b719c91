"""How what is wrong with pipelines reads at the API."""

from __future__ import annotations

from pipelines.definition import DefinitionError
from pipelines.exceptions import PipelineError
from tenants.api import problems


class AlreadyExists(PipelineError):
    """Something of this key is there already."""

    code = "already_exists"


problems.register(DefinitionError, 400)
