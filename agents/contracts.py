"""What passes between the engine and an agent's adapter: frozen values, no database objects.

An adapter receives an `AgentRequest` and answers with an `AgentResult` or raises an `agents.exceptions.AgentError`.
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

#: By adapter that waits for batches: the one whose provider's batches they are, and which does the rest at once.
BATCHES_OF = {"batch": "anthropic"}


Value = TypeVar("Value")


class WhenRead(Generic[Value]):
    """A field that may be given as a function without parameters instead: it is called once the field is read, for the first time only.

    For values that take long to compute and are seldom read. The value is kept; two threads that read it at once may both compute it.
    """

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    @overload
    def __get__(self, instance: None, owner: type) -> WhenRead[Value]: ...
    @overload
    def __get__(self, instance: object, owner: type) -> Value: ...
    def __get__(self, instance: object | None, owner: type) -> WhenRead[Value] | Value:
        if instance is None:
            raise AttributeError(self.name)  # as a field without a default
        value: Any = instance.__dict__[self.name]
        if callable(value):
            value = instance.__dict__[self.name] = value()
        made: Value = value
        return made

    def __set__(self, instance: object, value: Value | Callable[[], Value]) -> None:
        instance.__dict__[self.name] = value


@dataclass(frozen=True, slots=True)
class Usage:
    """What a run consumed, as its agent reports it. Zero means "not reported"."""

    input_tokens: int = 0
    output_tokens: int = 0
    cost_usd: Decimal | None = None
    model: str | None = None
    in_batch: bool = False  # through a provider's batches, which have a price of their own


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
    platform_pays_for: Sequence[str] = (
        "*",
    )  # patterns of the models that may be called with a key of the platform


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


@dataclass(frozen=True, kw_only=True)
class AgentRequest:
    """Everything an agent is told about one run. `idempotency_key` is the same for all attempts of one wake."""

    tenant_id: UUID
    activity_id: UUID
    run_id: UUID
    idempotency_key: str
    agent_role: str
    attempt: int
    prompt: WhenRead[str] = WhenRead()  # a text, for who reads it
    settings: AdapterSettings
    callback: WhenRead[Callback] = WhenRead()
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
    max_turns: int | None = None  # answers of its model after which it shall have come to an end
    instructions: str = ""  # what the agent is and how it works; stands in the prompt as well, but for models
    skills: Skills = field(default_factory=Skills)
    skills_dir: Path | None = None  # for agents on this machine: the skills as files, during the call
    wanted_by: datetime | None = None  # until when the work itself should be done, whatever its run may take
    at_once: bool = False  # the work has been in a batch and shall not go into another
    begun: Mapping[str, Any] | None = None  # what a model has answered already, in its provider's protocol


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
    """The work shall go to its provider with a batch: the engine keeps it until then, and no worker waits for it."""

    provider: str  # the key of the provider's state, which tells credentials apart
    model: str
    body: Mapping[str, Any]  # the request, in the provider's protocol
    leave_at: datetime  # when waiting for a batch is over, since the work is wanted soon after
    session_id: str | None = None


AgentResult = Completed | Accepted | Parked


#: What a line of a run's log is: the agent's own words, a tool that it calls, what that answered, and anything else worth knowing.
LINE_KINDS = ("text", "tool_call", "tool_result", "note")


@dataclass(frozen=True, slots=True)
class LogLine:
    """One line of what an agent says while it works. `kind` is one of `LINE_KINDS`; without `at` it is as old as its arrival."""

    kind: str
    text: str
    at: datetime | None = None


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call of an agent to one of the five tools, as it came in. `call_id` makes a repetition recognisable."""

    name: str
    arguments: Mapping[str, Any]
    call_id: str


@dataclass(frozen=True, slots=True)
class ToolAnswer:
    """What an agent is told about its call. After `stop` the run is over: the adapter ends, and what it returns is no output.

    `refused` says that nothing happened, and `body` says why: the agent may try otherwise.
    """

    body: Mapping[str, Any]
    stop: bool = False
    refused: bool = False


class RunLink(Protocol):
    """How an adapter keeps in touch with the engine while it runs an agent. Everything may be called again and from any thread."""

    def stop_reason(self) -> str | None:
        """Why the result is not wanted any more, or None. It may cost a query: call it about once a second."""
        ...  # pragma: no cover

    def saw_session(self, session_id: str) -> None:
        """Record the conversation that the agent has named, at once, so that a run after a crash continues it."""
        ...  # pragma: no cover

    def count_usage(self, usage: Usage) -> str | None:
        """Report what the run has consumed so far, in total; returns why it shall stop, or None."""
        ...  # pragma: no cover

    def note_progress(self, progress: Mapping[str, Any]) -> None:
        """Report the progress of the run, for people and metrics; entries under other keys stay."""
        ...  # pragma: no cover

    def log(self, kind: str, text: str) -> None:
        """Add to what people see of the run while it goes on; `kind` is one of `LINE_KINDS`, and each line of the text is one of the log.
        Never waits, and never fails the run: what cannot be kept is counted."""
        ...  # pragma: no cover

    def call_tool(self, call: ToolCall) -> ToolAnswer:
        """Do what the agent asks for, with the authority of its run. Raises nothing that the agent could have caused."""
        ...  # pragma: no cover
