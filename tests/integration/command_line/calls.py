"""Runs programs, successfully or with a failure."""

from __future__ import annotations

from typing import Any

import pytest

from agents.contracts import Completed
from agents.exceptions import (
    AgentError,
)
from agents.runner import run_agent
from tests.programs import a_request
from tests.recording_link import RecordingLink

STREAM = {"output": "stream-json"}


def run(
    command: list[Any],
    link: RecordingLink | None = None,
    *,
    changes: dict[str, Any] | None = None,
    **options: Any,
) -> Completed:
    result = run_agent(
        a_request({"command": command, **options}, **(changes or {})), link=link or RecordingLink()
    )
    assert isinstance(result, Completed)
    return result


def run_and_fail(
    command: list[Any],
    link: RecordingLink | None = None,
    *,
    changes: dict[str, Any] | None = None,
    **options: Any,
) -> AgentError:
    with pytest.raises(AgentError) as caught:
        run(command, link, changes=changes, **options)
    return caught.value
