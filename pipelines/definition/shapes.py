"""The frozen parts of a definition, and the form in which they are stored and compared.

`to_dict` includes every default, so a stored version keeps its meaning when a default changes. `parse` reads
that form back to an equal definition, even after jsonb has rewritten numbers and the order of keys.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, field, fields
from enum import StrEnum
from hashlib import sha256
from json import dumps
from typing import Any

from pipelines.graph import UpstreamFailure


class RetryStrategy(StrEnum):
    """How the delay grows from one attempt to the next."""

    EXPONENTIAL = "exponential"
    LINEAR = "linear"
    FIXED = "fixed"


class OnTimeout(StrEnum):
    """What happens when no person answers in time."""

    ESCALATE = "escalate"
    APPROVE = "approve"
    REJECT = "reject"


@dataclass(frozen=True, slots=True)
class RetryDefinition:
    """How often an agent's step is tried, and the delay between attempts."""

    max_attempts: int = 3  # in total, including the first
    strategy: RetryStrategy = RetryStrategy.EXPONENTIAL
    base_seconds: float = 5
    multiplier: float = 2
    max_seconds: float = 300
    jitter: float = 0.1  # fraction of the delay that is random

    def to_dict(self) -> dict[str, Any]:
        return {part.name: _plain(getattr(self, part.name)) for part in fields(self)}


@dataclass(frozen=True, slots=True)
class ReminderDefinition:
    """When the assigned person is reminded; with a `human_role`, that role is notified as well."""

    after_seconds: float  # after the person was asked
    human_role: str | None = None

    def to_dict(self) -> dict[str, Any]:
        return _without_none({"after_seconds": self.after_seconds, "human_role": self.human_role})


@dataclass(frozen=True, slots=True)
class EscalationDefinition:
    """The role that is asked next when nobody has answered."""

    after_seconds: float  # after the first person was asked
    human_role: str

    def to_dict(self) -> dict[str, Any]:
        return {"after_seconds": self.after_seconds, "human_role": self.human_role}


@dataclass(frozen=True, slots=True)
class StepDefinition:
    """One step. None means not set: the template or the registry decides. `depends_on` is complete."""

    id: str
    name: str | None = None
    description: str = ""
    template: str | None = None
    agent_role: str | None = None
    human_role: str | None = None
    is_approval_gate: bool = False
    requires_approval: bool = False
    depends_on: tuple[str, ...] = ()
    parallel: bool = False  # already reflected in depends_on
    on_upstream_failure: UpstreamFailure = UpstreamFailure.FAIL
    when: str | None = None
    for_each: str | None = None
    params: Mapping[str, Any] = field(default_factory=dict)
    retry: RetryDefinition | None = None
    timeout_seconds: float | None = None
    due_seconds: float | None = None
    reminders: tuple[ReminderDefinition, ...] = ()
    escalation: tuple[EscalationDefinition, ...] = ()
    on_timeout: OnTimeout | None = None
    quorum: int | None = None
    voters: int | None = None
    self_approval: bool | None = None
    priority: int | None = None
    max_rounds: int | None = None
    dependency_timeout_seconds: float | None = None

    @property
    def title(self) -> str:
        """The step's name for people."""
        return self.name or self.id

    def to_dict(self) -> dict[str, Any]:
        return _without_none({part.name: _plain(getattr(self, part.name)) for part in fields(self)})


@dataclass(frozen=True, slots=True)
class PipelineDefinition:
    """A whole pipeline. `params` are the defaults of a run's parameters."""

    key: str
    name: str
    steps: tuple[StepDefinition, ...]
    description: str = ""
    params: Mapping[str, Any] = field(default_factory=dict)
    subject: str = ""  # template of a run's subject, see `pipelines.subjects`
    enabled: bool | None = None  # of the pipeline, for all its versions; None leaves it as it is

    def to_dict(self) -> dict[str, Any]:
        """Return what a version stores as plain JSON data, a deep copy."""
        members = {
            part.name: _plain(getattr(self, part.name)) for part in fields(self) if part.name != "enabled"
        }
        # Omit an empty subject, so that definitions from before subjects existed keep their digest.
        return {name: value for name, value in members.items() if name != "subject" or value}

    def digest(self) -> str:
        """Return the SHA-256 of `to_dict` in hexadecimal. Equal definitions have equal digests, however they were written."""
        canonical = dumps(self.to_dict(), sort_keys=True, separators=(",", ":"), allow_nan=False)
        return sha256(canonical.encode()).hexdigest()


def _plain(value: Any) -> Any:
    if isinstance(value, StrEnum):
        return value.value
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    if isinstance(value, RetryDefinition | ReminderDefinition | EscalationDefinition | StepDefinition):
        return value.to_dict()
    return deepcopy(dict(value)) if isinstance(value, Mapping) else value


def _without_none(data: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in data.items() if value is not None}
