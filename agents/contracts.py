"""The interface between the engine and an agent's adapter: frozen values, no database objects.

An adapter receives an `AgentRequest`, and returns an `AgentResult` or raises an `agents.exceptions.AgentError`.
Both sides may rely on nothing else, so one conformance suite can run against every adapter.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar, overload
from uuid import UUID

#: For each batch adapter, the adapter of the same provider that does the other work at once.
BATCHES_OF = {"batch": "anthropic"}


Value = TypeVar("Value")


class LazyField(Generic[Value]):
    """A field that accepts a function without parameters, which is called when the field is first read.

    For values that take long to compute and are seldom read. The value is cached; two threads that read it at once may both compute it.
    """

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    @overload
    def __get__(self, instance: None, owner: type) -> LazyField[Value]: ...
    @overload
    def __get__(self, instance: object, owner: type) -> Value: ...
    def __get__(self, instance: object | None, owner: type) -> LazyField[Value] | Value:
        if instance is None:
            raise AttributeError(self.name)  # as a field without a default
        value: Any = instance.__dict__[self.name]
        if callable(value):
            value = instance.__dict__[self.name] = value()
        result: Value = value
        return result

    def __set__(self, instance: object, value: Value | Callable[[], Value]) -> None:
        instance.__dict__[self.name] = value


@dataclass(frozen=True, slots=True)
class Usage:
    """The resources that a run consumed, as its agent reports them. Zero means "not reported"."""

    input_tokens: int = 0
    output_tokens: int = 0
    cost_usd: Decimal | None = None
    model: str | None = None
    in_batch: bool = False  # through a provider's batches, which have a different price


@dataclass(frozen=True, slots=True)
class Output:
    """What an agent produced: text, structured data, or both."""

    content: str | None = None
    data: Any = None
    content_type: str = "text/markdown"


@dataclass(frozen=True, slots=True)
class HttpLimits:
    max_concurrent: int = 50  # concurrent calls
    max_sockets: int = 100  # connections, idle ones included
    keep_alive: bool = True  # whether connections are kept for the next call


@dataclass(frozen=True, slots=True)
class AdapterSettings:
    """How to reach the agent of one role for one tenant: the registry's row with the tenant's overrides on top."""

    adapter: str  # "http", "inline", ...
    endpoint: str | None = None  # URL for http, dotted path of a callable for inline
    # {"type": "bearer", "token": ...} or {"type": "header", ...}
    auth: Mapping[str, str] = field(default_factory=dict)
    model: str | None = None
    signing_secrets: Sequence[str] = ()  # Standard Webhooks secrets ("whsec_..."), newest first
    version: str | None = None  # semantic version of the production deployment, pinned by the run
    options: Mapping[str, Any] = field(default_factory=dict)
    # The platform's limits, for adapters that make calls.
    http: HttpLimits = field(default_factory=HttpLimits)
    # Patterns of the models that may be called with a key of the platform.
    platform_pays_for: Sequence[str] = ("*",)


@dataclass(frozen=True, slots=True)
class Callback:
    """Where and with which token an agent reports back about exactly one run."""

    url: str
    token: str


@dataclass(frozen=True, slots=True)
class ContextFile:
    """A text that a tenant wants every agent of a role to know, in full."""

    name: str
    content: str


@dataclass(frozen=True, slots=True)
class SkillSummary:
    """A skill without its text: when to use it, and where to read it: at an address, and in a file below `skills_dir` if there is one."""

    key: str
    name: str
    description: str
    version: int
    url: str
    path: str | None = None


@dataclass(frozen=True, slots=True)
class Skills:
    """Context and skills that an agent can read in addition to its task."""

    context: Sequence[ContextFile] = ()
    manifest: Sequence[SkillSummary] = ()


@dataclass(frozen=True, kw_only=True)
class AgentRequest:
    """Everything that an agent receives for one run. `idempotency_key` is the same for all attempts of one wake."""

    tenant_id: UUID
    activity_id: UUID
    run_id: UUID
    idempotency_key: str
    agent_role: str
    attempt: int
    prompt: LazyField[str] = LazyField()  # rendered only for adapters that read it
    settings: AdapterSettings
    callback: LazyField[Callback] = LazyField()
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
    # `rejection_ref`, `reviewer_notes`, `blocker_resolution`, ...
    wake_context: Mapping[str, Any] = field(default_factory=dict)
    session_id: str | None = None
    max_turns: int | None = None  # the model must finish within this many answers
    instructions: str = ""  # what the agent is and how it works; also in the prompt, except for models
    skills: Skills = field(default_factory=Skills)
    skills_dir: Path | None = None  # for agents on this machine: a folder with the skills, during the call
    wanted_by: datetime | None = None  # until when the work should be done, independent of the run's timeout
    at_once: bool = False  # the work has been in a batch and must not go into another
    # A model's earlier answer to this request, in its provider's protocol.
    begun: Mapping[str, Any] | None = None


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


@dataclass(frozen=True, slots=True)
class Parked:
    """The work waits for a batch of its provider: the engine stores it until then, and no worker waits for it."""

    provider: str  # the key of the provider's state, which distinguishes credentials
    model: str
    body: Mapping[str, Any]  # the request, in the provider's protocol
    leave_at: datetime  # when to stop waiting for a batch, because the deadline is near


AgentResult = Completed | Accepted | Parked


#: The kinds of lines in a run's log: the agent's own words, its tool calls, their results, and anything else worth knowing.
LINE_KINDS = ("text", "tool_call", "tool_result", "note")


@dataclass(frozen=True, slots=True)
class LogLine:
    """One line of a run's log. `kind` is one of `LINE_KINDS`; without `at`, the time of arrival counts."""

    kind: str
    text: str
    at: datetime | None = None


@dataclass(frozen=True, slots=True)
class ToolCall:
    """An agent's call of one of the five tools, not yet validated. `call_id` identifies repetitions."""

    name: str
    arguments: Mapping[str, Any]
    call_id: str


@dataclass(frozen=True, slots=True)
class ToolAnswer:
    """The answer to an agent's tool call. After `stop` the run is over: the adapter must end, and its result is ignored.

    `refused` says that nothing happened, and `body` says why; the agent may try something else.
    """

    body: Mapping[str, Any]
    stop: bool = False
    refused: bool = False


class RunLink(Protocol):
    """An adapter's link to the engine while it runs an agent. All methods may be called repeatedly and from any thread."""

    def stop_reason(self) -> str | None:
        """Return why the result is no longer needed, or None. It may cost a query: call it about once a second."""
        ...  # pragma: no cover

    def saw_session(self, session_id: str) -> None:
        """Record the session that the agent has reported. Takes effect at once, so that a run after a crash continues it."""
        ...  # pragma: no cover

    def count_usage(self, usage: Usage) -> str | None:
        """Report the total usage of the run so far. Return why the run must stop, or None."""
        ...  # pragma: no cover

    def note_progress(self, progress: Mapping[str, Any]) -> None:
        """Report the progress of the run, for people and metrics. Entries under other keys are kept."""
        ...  # pragma: no cover

    def log(self, kind: str, text: str) -> None:
        """Add lines to the log of the run, which people can follow. `kind` is one of `LINE_KINDS`; each line of the text becomes one line.
        Never blocks and never fails the run: lines that cannot be stored are counted."""
        ...  # pragma: no cover

    def call_tool(self, call: ToolCall) -> ToolAnswer:
        """Execute the agent's tool call, with the authority of its run. Errors that the agent may have caused are returned, not raised."""
        ...  # pragma: no cover
