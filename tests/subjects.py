"""Every adapter, each with an agent or a provider that does what a test says."""

from __future__ import annotations

import json
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from types import ModuleType
from typing import TYPE_CHECKING, Any, ClassVar
from uuid import uuid4

import pytest
from pytest_httpserver import HTTPServer
from werkzeug import Request, Response

from agents import batches
from agents.contracts import (
    AdapterSettings,
    AgentRequest,
    AgentResult,
    Callback,
    Completed,
    Parked,
    RunLink,
    Usage,
)
from agents.exceptions import AgentRateLimited, PermanentAgentError, RetryableAgentError
from agents.runner import run_agent
from benchmarks.fake_provider import FakeProvider, Fault, Turn, Use
from tests.recording_link import RecordingLink

if TYPE_CHECKING:
    from tests.a2a_agent import A2AAgent

KEY = "providers-own-key-0123456789"
TOKEN = "callback-token-0123456789"

#: Adapters whose agents cannot be scripted here.
TESTED_ELSEWHERE = {"cli": "tests/integration/test_command_line_workers.py"}


@dataclass(frozen=True)
class Says:
    """The agent completes its work with this text."""

    text: str = "Done."
    input_tokens: int = 7
    output_tokens: int = 3


@dataclass(frozen=True)
class Calls:
    """The agent calls a tool."""

    tool: str
    arguments: dict[str, Any]


@dataclass(frozen=True)
class Fails:
    """The agent, or its provider, answers with this status."""

    status: int
    retry_after: float | None = None


@dataclass(frozen=True)
class Hangs:
    """The agent starts and never answers."""


Step = Says | Calls | Fails | Hangs


def a_request(settings: AdapterSettings, **changes: Any) -> AgentRequest:
    request = AgentRequest(
        tenant_id=uuid4(), activity_id=uuid4(), run_id=uuid4(), idempotency_key="wake-1", agent_role="seo", attempt=1,
        prompt="Write a title.\nKeep it short.", settings=settings, callback=Callback("https://orchestrator.example/run/", TOKEN),
        timeout_seconds=20, deadline=datetime.now(UTC) + timedelta(seconds=20), instructions="You write titles.",
    )  # fmt: skip
    return replace(request, **changes)


@dataclass
class Subject(ABC):
    """One adapter. `cannot` names what it cannot do, with the reason.

    `fixture` is the fixture that it is made from, and `package` the package that it needs; empty for none.
    """

    name: ClassVar[str]
    fixture: ClassVar[str] = ""
    package: ClassVar[str] = ""
    cannot: ClassVar[dict[str, str]] = {}

    @abstractmethod
    def script(self, *steps: Step) -> AdapterSettings:
        """Set what the agent does, and return the settings with which the adapter reaches it."""

    @abstractmethod
    def prompts(self) -> list[str]:
        """Return the prompts that the agent received."""

    def session(self) -> str | None:
        """Return the id of the conversation that the agent names, if it has one."""
        return None if "session" in self.cannot else "s-1"

    def run(self, *steps: Step, link: RunLink | None = None, **changes: Any) -> AgentResult:
        return run_agent(a_request(self.script(*steps), **changes), link=link or RecordingLink())


@dataclass
class HttpSubject(Subject):
    server: HTTPServer
    jobs: list[dict[str, Any]] = field(default_factory=list)

    name = "http"
    fixture = "httpserver"
    cannot = {
        "tools": "an agent elsewhere calls tools by the callback API",
        "rounds": "it has one call",
        "log": "an agent elsewhere reports its lines by the callback API",
    }

    def script(self, *steps: Step) -> AdapterSettings:
        (step,) = steps

        def answer(request: Request) -> Response:
            self.jobs.append(json.loads(request.data))
            match step:
                case Hangs():
                    time.sleep(1)
                case Fails(status, after):
                    return Response(
                        "made to fail", status, {} if after is None else {"Retry-After": str(after)}
                    )
                case Says(text, input_tokens, output_tokens):
                    usage = {"input_tokens": input_tokens, "output_tokens": output_tokens, "model": "m-1"}
                    return Response(
                        json.dumps({"output": {"content": text}, "usage": usage, "session_id": "s-1"})
                    )
            return Response("{}", 500)

        self.server.expect_request("/run").respond_with_handler(answer)
        return AdapterSettings("http", self.server.url_for("/run"))

    def prompts(self) -> list[str]:
        return [job["prompt"] for job in self.jobs]


@dataclass
class A2ASubject(Subject):
    agent: A2AAgent

    name = "a2a"
    fixture = "a2a_agent"
    package = "a2a"
    cannot = {
        "tools": "the protocol has questions to people, and no tools of its caller",
        "rounds": "it has one call",
        "log": "the protocol reports words and no tool calls: tests/integration/adapters/test_a2a.py",
    }

    def script(self, *steps: Step) -> AdapterSettings:
        from tests import a2a_agent

        (step,) = steps
        match step:
            case Hangs():
                self.agent.turns = [a2a_agent.hangs()]
            case Fails(status, after):
                self.agent.refusing = (status, {} if after is None else {"Retry-After": str(after)})
            case Says(text, input_tokens, output_tokens):
                turn = a2a_agent.says(
                    text, input_tokens=input_tokens, output_tokens=output_tokens, model="m-1"
                )
                self.agent.turns = [turn]
        return AdapterSettings("a2a", self.agent.url)

    def prompts(self) -> list[str]:
        return [message.parts[0].text for message in self.agent.heard]

    def session(self) -> str | None:
        (message,) = self.agent.heard
        ids = {"context": message.context_id, "task": message.task_id}
        of_activity, of_wake = (
            sha256(each.encode()).hexdigest()[:8] for each in (message.metadata["job_id"], "wake-1")
        )
        return json.dumps({**ids, "message": of_activity + of_wake}, separators=(",", ":"))


@dataclass
class InlineSubject(Subject):
    seen: list[AgentRequest] = field(default_factory=list)

    name = "inline"
    cannot = {
        "tools": "this function does not take the link to the engine",
        "log": "this function does not take the link to the engine",
        "rounds": "it has one call",
        "cancel": "a function cannot be interrupted",
        "unreachable": "there is nothing to reach",
    }

    def script(self, *steps: Step) -> AdapterSettings:
        (step,) = steps

        def run(request: AgentRequest) -> Any:
            self.seen.append(request)
            match step:
                case Hangs():
                    raise TimeoutError("too long")
                case Fails(429, after):
                    raise AgentRateLimited("slow down", retry_after=after)
                case Fails(status):
                    raise (RetryableAgentError if status >= 500 else PermanentAgentError)("made to fail")
                case Says(text, input_tokens, output_tokens):
                    usage = {"input_tokens": input_tokens, "output_tokens": output_tokens, "model": "m-1"}
                    return {"output": {"content": text}, "usage": usage, "session_id": "s-1"}

        return AdapterSettings("inline", place_function(run))

    def prompts(self) -> list[str]:
        return [request.prompt for request in self.seen]


def place_function(function: Callable[..., Any]) -> str:
    """Make the function importable under a name that the adapter `inline` can call."""
    module, name = "tests.placed_functions", f"run_{uuid4().hex}"
    home = sys.modules.setdefault(module, ModuleType(module))
    function.__module__ = module
    setattr(home, name, function)
    return f"{module}:{name}"


@dataclass
class ModelSubject(Subject):
    """A model behind a provider's protocol."""

    provider: FakeProvider

    fixture = "provider"
    options: dict[str, Any] = field(default_factory=dict)

    cannot = {"session": "providers keep no conversation, so each run starts from the beginning"}

    def script(self, *steps: Step) -> AdapterSettings:
        self.provider.script(*map(_scripted, steps))
        return self.settings()

    def settings(self, **changes: Any) -> AdapterSettings:
        chosen = AdapterSettings(
            self.name, self.url, {"type": "bearer", "token": KEY}, "m-1", options=self.options
        )
        return replace(chosen, **changes)

    @property
    def url(self) -> str:
        return self.provider.anthropic_url if self.name == "anthropic" else self.provider.openai_url

    @property
    def bodies(self) -> list[Any]:
        return [call.body for call in self.provider.recorder.calls]

    def prompts(self) -> list[str]:
        return [
            next(each["content"] for each in body["messages"] if each["role"] == "user")
            for body in self.bodies
        ]


class AnthropicSubject(ModelSubject):
    name = "anthropic"
    package = "anthropic"


class OpenAISubject(ModelSubject):
    name = "openai"
    package = "openai"


class BatchSubject(ModelSubject):
    """A batch of one item for each run. What the batch does not complete continues immediately with usual calls."""

    name = "batch"
    package = "anthropic"
    cannot = {
        "session": "providers keep no conversation, so each run starts from the beginning",
        "cancel": "no worker waits for the answer: the engine drops the item",
        "timeout": "no worker waits for the answer: the engine removes the item from its batch",
        "unreachable": "nothing is called before the batch is sent",
        "log": "a batch reports no lines while it runs",
    }

    @property
    def url(self) -> str:
        return self.provider.anthropic_url

    @property
    def bodies(self) -> list[Any]:
        batched = [request["params"] for request in self.provider.batches.requests()]
        return batched + [body for body in super().bodies if body and "messages" in body]

    def script(self, *steps: Step) -> AdapterSettings:
        first, *rest = map(_scripted, steps)
        if isinstance(first, Fault):
            self.provider.batches.refusals.append(first)
        else:
            self.provider.batches.answering = lambda body: first
        self.provider.script(*rest)
        return self.settings()

    def run(self, *steps: Step, link: RunLink | None = None, **changes: Any) -> AgentResult:
        chosen, link = self.script(*steps), link or RecordingLink()
        later = datetime.now(UTC) + timedelta(days=1)
        request = a_request(chosen, **({"priority": 20, "deadline": later} | changes))
        parked = run_agent(request, link=link)
        assert isinstance(parked, Parked)
        client = batches.client_for(chosen, parked.provider)
        sent = client.create([(request.run_id.hex, parked.body)])
        assert client.fetch(sent.id).status == "ended"
        (answer,) = client.answers(sent.id, max_bytes=1_000_000)
        assert answer.message is not None
        if (completed := batches.read_completed(answer.message, chosen.options)) is not None:
            return replace(completed, usage=replace(completed.usage or Usage(), in_batch=False))
        batch_usage = batches.usage_of(answer.message)
        link.count_usage(batch_usage)
        result = run_agent(
            replace(request, begun=answer.message, at_once=True), link=_SummingLink(link, batch_usage)
        )
        assert isinstance(result, Completed)
        return replace(result, usage=_sum(batch_usage, result.usage or Usage()))


@dataclass
class _SummingLink:
    """Adds the usage of the batch to that of the following run, as the engine does."""

    link: RunLink
    batch_usage: Usage

    def count_usage(self, usage: Usage) -> str | None:
        return self.link.count_usage(_sum(self.batch_usage, usage)) if usage.output_tokens else None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.link, name)


def _sum(one: Usage, other: Usage) -> Usage:
    return Usage(
        one.input_tokens + other.input_tokens, one.output_tokens + other.output_tokens, model=one.model
    )


def _scripted(step: Step | Turn | Fault) -> Turn | Fault:
    match step:
        case Says(text, input_tokens, output_tokens):
            return Turn(text, input_tokens=input_tokens, output_tokens=output_tokens)
        case Calls(tool, arguments):
            return Turn("I need this.", (Use(tool, arguments),), input_tokens=5, output_tokens=2)
        case Fails(status, after):
            return Fault("status", status, None if after is None else str(after))
        case Hangs():
            return Fault("hang")
    return step


def usage(given: int, made: int) -> Usage:
    return Usage(given, made, model="m-1")


SUBJECTS: dict[str, type[Subject]] = {
    subject.name: subject
    for subject in (HttpSubject, InlineSubject, A2ASubject, AnthropicSubject, OpenAISubject, BatchSubject)
}


def make_subject(name: str, request: pytest.FixtureRequest) -> Subject:
    """Return an agent behind the adapter. Skips the test if a package that it needs is not installed."""
    subject = SUBJECTS[name]
    if subject.package:
        pytest.importorskip(subject.package, reason=f"the adapter {name} needs the package {subject.package}")
    return subject(request.getfixturevalue(subject.fixture)) if subject.fixture else subject()
