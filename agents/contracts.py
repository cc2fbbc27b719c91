"""What passes between the engine and an agent's adapter: frozen values, no database objects.

An adapter receives an `AgentRequest` and answers with an `AgentResult` or raises an `agents.exceptions.AgentError`.
Both sides may rely on nothing else, so one conformance suite can run against every adapter.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID


@dataclass(frozen=True, slots=True)
class Usage:
    """What a run consumed, as its agent reports it. Zero means "not reported"."""

    input_tokens: int = 0
    output_tokens: int = 0
    cost_usd: Decimal | None = None
    model: str | None = None


@dataclass(frozen=True, slots=True)
class Output:
    """What an agent produced: text, structured data, or both."""

    content: str | None = None
    data: Any = None
    content_type: str = "text/markdown"


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """What the HTTP client of one process may use at the same time."""

    max_concurrent: int = 50  # calls under way
    max_sockets: int = 100  # connections, idle ones included
    keep_alive: bool = True  # whether connections are kept for the next call


@dataclass(frozen=True, slots=True)
class AdapterSettings:
    """How to reach the agent of one role for one tenant: the registry's row with the tenant's overrides on top."""

    adapter: str  # "http", "inline", ...
    endpoint: str | None = None  # URL for http, dotted path of a callable for inline
    auth: Mapping[str, str] = field(
        default_factory=dict
    )  # {"type": "bearer", "token": ...} or {"type": "header", ...}
    model: str | None = None
    signing_secrets: Sequence[str] = ()  # Standard Webhooks secrets ("whsec_..."), newest first
    version: str | None = None  # semantic version of the production deployment, pinned by the run
    options: Mapping[str, Any] = field(default_factory=dict)
    http: HttpLimits = field(default_factory=HttpLimits)  # the platform's, for adapters that call somebody


@dataclass(frozen=True, slots=True)
class Callback:
    """Where and with which token an agent reports back about exactly one run."""

    url: str
    token: str


@dataclass(frozen=True, slots=True)
class ContextFile:
    """What a tenant wants every agent of a role to know about the client, in full."""

    name: str
    content: str


@dataclass(frozen=True, slots=True)
class SkillSummary:
    """That there is a skill, when to use it, and where it can be read: at an address, and in a file below `skills_dir` if there is one."""

    key: str
    name: str
    description: str
    version: int
    url: str
    path: str | None = None


@dataclass(frozen=True, slots=True)
class Skills:
    """What an agent may know beside its task."""

    context: Sequence[ContextFile] = ()
    manifest: Sequence[SkillSummary] = ()


@dataclass(frozen=True, slots=True)
class AgentRequest:
    """Everything an agent is told about one run. `idempotency_key` is the same for all attempts of one wake."""

    tenant_id: UUID
    activity_id: UUID
    run_id: UUID
    idempotency_key: str
    agent_role: str
    attempt: int
    prompt: str
    settings: AdapterSettings
    callback: Callback
    timeout_seconds: float
    deadline: datetime
    name: str = ""
    deliverable_id: UUID | None = None
    pipeline_step: str | None = None
    priority: int = 10
    params: Mapping[str, Any] = field(default_factory=dict)
    input: Mapping[str, Any] | None = None  # {"ref", "content", "data"} of the previous step's output
    wakes: Sequence[Mapping[str, Any]] = ()  # every wake this run carries, oldest first
    wake_reason: str = "new_task"
    wake_context: Mapping[str, Any] = field(
        default_factory=dict
    )  # rejection_ref, reviewer_notes, blocker_resolution, ...
    session_id: str | None = None
    instructions: str = ""  # what the agent is and how it works; stands in the prompt as well
    skills: Skills = field(default_factory=Skills)
    skills_dir: Path | None = None  # for agents on this machine: the skills as files, during the call


@dataclass(frozen=True, slots=True)
class Completed:
    """The agent answered at once: its output is the result of the run."""

    output: Output
    usage: Usage | None = None
    session_id: str | None = None


@dataclass(frozen=True, slots=True)
class Accepted:
    """The agent took the work and will report through the callback; no worker waits for it."""

    session_id: str | None = None


AgentResult = Completed | Accepted


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call of an agent to one of the five tools, as it came in. `call_id` makes a repetition recognisable."""

    name: str
    arguments: Mapping[str, Any]
    call_id: str
