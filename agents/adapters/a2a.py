"""The Agent2Agent adapter: sends the job to an agent that speaks the A2A protocol (1.0, or 0.3 for older agents), and follows its task.

The agent's card, below the endpoint at `.well-known/agent-card.json`, says how to call it: JSON-RPC or REST over HTTP. The adapter reads
the stream of an agent that streams, and polls any other every second or two. When the agent needs input (`input-required`), people are
asked, and their answer continues the task.

The session holds the id of the task while it is open. A run after a crash, or after the agent could not be reached, continues
the task of the previous run instead of beginning another one.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Final, Self

import httpx
import orjson
from a2a.client import A2ACardResolver, A2AClientError, Client, ClientConfig, ClientFactory
from a2a.types import (
    Artifact,
    CancelTaskRequest,
    GetTaskRequest,
    Message,
    Part,
    Role,
    SendMessageRequest,
    StreamResponse,
    Task,
    TaskState,
    TaskStatus,
)
from a2a.utils.constants import TransportProtocol
from a2a.utils.errors import A2AError, InternalError, TaskNotFoundError
from django.conf import settings
from google.protobuf import json_format

from agents import outbound, redaction
from agents.adapters.dialogue import STREAM_FACTOR, LiveText
from agents.adapters.http import authentication_of, error_of_status
from agents.contracts import AgentRequest, AgentResult, Completed, Output, RunLink, ToolCall, Usage
from agents.exceptions import (
    AgentError,
    ConfigurationError,
    PermanentAgentError,
    RetryableAgentError,
    SessionInvalid,
)
from agents.outbound.async_client import ConnectionFailed, async_client_for_agent
from agents.response_parser import MAX_SESSION_ID, InvalidAnswer, usage_from

# Until a task that is not streamed is first polled; later intervals grow to the maximum.
FIRST_POLL_SECONDS = 0.25
MAX_POLL_SECONDS = 2.0
MAX_FAILED_POLLS = 5  # in a row, before the agent counts as unreachable
CANCEL_SECONDS = 5.0  # for cancelling a task that is no longer needed
QUESTION_CHARACTERS = 2_000  # the limits of the tools
CONTENT_CHARACTERS = 200_000
DIGITS = 8  # of a digest in the session
LARGEST_WHOLE = 2**53  # above it, one floating-point number represents several integers

_BINDINGS: Final = [TransportProtocol.JSONRPC, TransportProtocol.HTTP_JSON]

_AT_WORK = frozenset(
    {TaskState.TASK_STATE_UNSPECIFIED, TaskState.TASK_STATE_SUBMITTED, TaskState.TASK_STATE_WORKING}
)
_ASKS = frozenset({TaskState.TASK_STATE_INPUT_REQUIRED, TaskState.TASK_STATE_AUTH_REQUIRED})
_DONE = TaskState.TASK_STATE_COMPLETED
_FINAL = frozenset(
    {_DONE, TaskState.TASK_STATE_FAILED, TaskState.TASK_STATE_CANCELED, TaskState.TASK_STATE_REJECTED}
)


#: A part of an artifact. A text is the list of the many fragments in which it arrived.
Piece = Part | list[str]


class A2AAdapter:
    """Calls agents of any maker that speak the Agent2Agent protocol."""

    def run(self, request: AgentRequest, *, link: RunLink) -> AgentResult:
        """Have the agent do the task. Raises the matching `AgentError` if it fails."""
        if not request.settings.endpoint:
            raise ConfigurationError(f"The role {request.agent_role} has no endpoint.")
        return _Conversation(request, request.settings.endpoint, link).run_task()


class _Conversation:
    """One run: connects to the agent, starts or continues its task, and follows it to its outcome."""

    def __init__(self, request: AgentRequest, endpoint: str, link: RunLink) -> None:
        self.request, self.endpoint, self.link = request, endpoint, link
        self.session = _Session.read(request.session_id)
        self.credential = authentication_of(request)
        # Identifies the activity and its wake, because several activities about a deliverable may share one conversation.
        self.digest = _short(str(request.activity_id)) + _short(request.idempotency_key)
        self.work = _Work(settings.ORCHESTRATOR_AGENT_RESPONSE_MAX_BYTES)
        self.live = LiveText(link)
        self.logged: set[str] = set()  # ids of messages that are in the log already
        self.answers = ""  # the question that this run answers

    def run_task(self) -> Completed:
        most = settings.ORCHESTRATOR_AGENT_RESPONSE_MAX_BYTES * STREAM_FACTOR
        try:
            with (
                outbound.call_budget(
                    self.request.timeout_seconds, most, lambda: self.link.stop_reason() is not None
                ),
                _plain_errors(self.request, self.endpoint),
            ):
                asyncio.run(self._run())
        except AgentError as error:
            # If the agent was unreachable, it likely still has the task, so the next attempt may continue it.
            if self.work.is_open and not (error.retryable and error.error_code != "agent_timeout"):
                self._give_up()
                with suppress(InvalidAnswer):
                    self._count_usage()
            raise
        return self._outcome()

    async def _run(self) -> None:
        async with async_client_for_agent(self.endpoint, self.credential) as http:
            client = await self._connect(http)
            earlier = await self._earlier_task(client)
            if earlier is not None and self._is_the_work_of_this_run(earlier):
                self.answers = self.session.answers
                self._take(StreamResponse(task=earlier))
            else:
                if earlier is not None and earlier.status.state in _AT_WORK:
                    await _cancel(client, earlier.id)  # its run is no longer needed
                await self._send(client, earlier)
            await self._follow(client)

    async def _connect(self, http: httpx.AsyncClient) -> Client:
        """Read the agent's card, and return a client for the way to call it that the card names."""
        self.card = await A2ACardResolver(http, self.endpoint).get_agent_card()
        config = ClientConfig(httpx_client=http, supported_protocol_bindings=list(_BINDINGS))
        try:
            return ClientFactory(config).create(self.card)
        except ValueError as error:
            raise ConfigurationError(
                f"The agent's card names no way to call it that is known here: {' and '.join(_BINDINGS)} are."
            ) from error

    async def _earlier_task(self, client: Client) -> Task | None:
        """Return the task of a previous run of this activity, if any. Tasks of other activities in the same conversation are ignored."""
        if not self.session.task or self.session.message[:DIGITS] != self.digest[:DIGITS]:
            return None
        try:
            return await _look_up(client, self.session.task)
        except TaskNotFoundError as error:
            raise SessionInvalid("The agent does not know the task that it was asked to continue.") from error

    def _is_the_work_of_this_run(self, task: Task) -> bool:
        """Whether a previous attempt began this task with the message of this run, and the task is open or has succeeded."""
        if self.session.message != self.digest:
            return False
        if task.status.state in _ASKS:
            # If equal, the answer has never arrived.
            return self.session.answers != _short(task.status.message.message_id)
        return task.status.state in _AT_WORK or task.status.state == _DONE

    async def _send(self, client: Client, earlier: Task | None) -> None:
        message = Message(
            message_id=self.request.idempotency_key,
            context_id=self.session.context,
            role=Role.ROLE_USER,
            parts=[Part(text=self.request.prompt)],
        )
        message.metadata.update(_metadata_of(self.request))
        if earlier is not None and earlier.status.state in _ASKS:
            message.task_id = earlier.id
            self.answers = _short(earlier.status.message.message_id)
            self.work.continue_task(earlier)
            self._report_session()
        elif self.session.message == self.digest:
            # A previous task for this message ended without a result that counts. A new id keeps the agent from answering with that task.
            # It is not the number of the attempt, because a run that uses up no attempt is followed by one with the same number.
            message.message_id += f":{self.request.run_id}"
        request = SendMessageRequest(message=message)
        request.configuration.return_immediately = not self.card.capabilities.streaming
        has_begun = False
        try:
            async for update in client.send_message(request):
                self._take(update)
                has_begun = bool(self.work.task)
        except ConnectionFailed:
            if not has_begun:
                raise  # it is unknown whether the task has begun

    async def _follow(self, client: Client) -> None:
        """Poll the task until it ends or the agent asks for something."""
        lost, seconds = 0, FIRST_POLL_SECONDS
        while self.work.is_open:
            await asyncio.sleep(seconds)
            seconds = min(seconds * 1.5, MAX_POLL_SECONDS)
            try:
                self._take(StreamResponse(task=await _look_up(client, self.work.task)))
                lost = 0
            except TaskNotFoundError as error:
                raise RetryableAgentError("The agent has lost the task.", code="agent_failed") from error
            except ConnectionFailed:
                lost += 1
                if lost == MAX_FAILED_POLLS:
                    raise

    def _take(self, update: StreamResponse) -> None:
        """Record an update, and write new text to the log."""
        known = self.work.task
        for text in self.work.take(update):
            self.live.hear(text)
        if self.work.task and self.work.task != known:
            self._report_session()
        message = self.work.status.message
        if message.message_id and message.message_id not in self.logged:
            self.logged.add(message.message_id)
            self.live.end()
            if text := _text_of(message.parts):
                self.link.log("text", text)

    def _give_up(self) -> None:
        """Cancel the agent's task, because its result is no longer needed. Failures are ignored."""

        async def cancel() -> None:
            async with async_client_for_agent(self.endpoint, self.credential) as http:
                await _cancel(await self._connect(http), self.work.task)

        with (
            suppress(AgentError),
            outbound.call_budget(CANCEL_SECONDS, 64 * 1024),
            _plain_errors(self.request, self.endpoint),
        ):
            asyncio.run(cancel())

    def _outcome(self) -> Completed:
        self.live.end()
        usage = self._count_usage()
        state, text = self.work.status.state, _text_of(self.work.status.message.parts)
        if self.work.answer is not None or state == _DONE:
            return Completed(self.work.output(), usage, self._current_session())
        if state in _ASKS:
            self._ask(text)
            return Completed(Output(), usage, self._current_session())
        excerpt = redaction.excerpt_for(self.request, text)
        why = f": {excerpt}" if excerpt else "."
        match state:
            case TaskState.TASK_STATE_FAILED:
                raise RetryableAgentError(f"The agent's task failed{why}", code="agent_failed")
            case TaskState.TASK_STATE_CANCELED:
                raise PermanentAgentError(f"The agent cancelled its task{why}", code="agent_cancelled")
            case TaskState.TASK_STATE_REJECTED:
                raise PermanentAgentError(f"The agent rejected the task{why}")
        if not self.work.task:
            raise InvalidAnswer(("task.id", "is missing"))
        raise InvalidAnswer(("task.status.state", f"{state} is not known"))

    def _count_usage(self) -> Usage | None:
        """Record the usage for this message, which counts however the task ended. Raises `InvalidAnswer`."""
        errors: list[tuple[str, str]] = []
        usage = usage_from(self.work.usage, errors)
        if errors:
            raise InvalidAnswer(*errors)
        if usage is not None:
            self.link.count_usage(usage)
        return usage

    def _ask(self, question: str) -> None:
        """Ask people. The run ends, and the next one continues the task with their answer."""
        question = question or "The agent needs an answer, and has not said to what."
        short = question[:QUESTION_CHARACTERS]
        if self.work.status.state == TaskState.TASK_STATE_AUTH_REQUIRED:
            tool, arguments = "report_blocker", {"type": "agent_auth_required", "message": short}
        else:
            tool, arguments = "request_human_review", {"question": short}
            whole_question = [question] if len(question) > QUESTION_CHARACTERS else []
            if content := "\n\n".join([*whole_question, *filter(None, [self.work.output().content])]):
                arguments["content"] = content[:CONTENT_CHARACTERS]
        asked_once = f"{self.digest}:{self.work.status.message.message_id}"[:100]
        answer = self.link.call_tool(ToolCall(tool, arguments, asked_once))
        if not answer.stop:
            excerpt = redaction.excerpt_for(self.request, str(answer.body.get("message", "")))
            raise PermanentAgentError(f"The agent asks for something, and nobody could be asked: {excerpt}")

    def _current_session(self) -> str | None:
        message = self.digest if self.work.task else ""
        return _Session(self.work.context, self.work.task, message, self.answers).dump()

    def _report_session(self) -> None:
        """Report the session at once, so that an attempt after a crash finds the task."""
        session = self._current_session()
        if session is not None:
            self.link.saw_session(session)


@dataclass(frozen=True, slots=True)
class _Session:
    """What the next run has to know: the agent's ids of the conversation and its task, the message of ours that began or
    continued the task, and the agent's question that this message answers."""

    context: str = ""
    task: str = ""
    message: str = ""
    answers: str = ""

    @classmethod
    def read(cls, text: str | None) -> Self:
        try:
            stored = orjson.loads(text or "{}")
        except orjson.JSONDecodeError:
            return cls()  # the session is older than the role's use of this adapter
        if not isinstance(stored, dict):
            return cls()
        named = {each.name: stored.get(each.name) for each in fields(cls)}
        return cls(**{name: value for name, value in named.items() if isinstance(value, str)})

    def dump(self) -> str | None:
        """Return the session as text, without the task if that would be too long. Return None when it is empty."""
        if not self.context and not self.task:
            return None
        for members in (asdict(self), {"context": self.context}):
            text = orjson.dumps({name: value for name, value in members.items() if value}).decode()
            if len(text) <= MAX_SESSION_ID:
                return text
        return None


@dataclass
class _Work:
    """The known state of the agent's task, assembled from its updates."""

    most_bytes: int
    task: str = ""
    context: str = ""
    status: TaskStatus = field(default_factory=TaskStatus)
    artifacts: dict[str, list[Piece]] = field(default_factory=dict)
    usage: Any = None  # as the agent has reported it since the message of this run
    answer: Message | None = None  # sent at once, without a task
    _size: int = 0
    _usage_before: Any = None

    @property
    def is_open(self) -> bool:
        """Whether the agent works on a task."""
        return bool(self.task) and self.status.state in _AT_WORK

    def continue_task(self, task: Task) -> None:
        """Continue a task: keep what it has produced so far. Its usage so far has been counted already."""
        self._note_result(task)
        self._note(task.id, task.context_id, task.metadata)
        self._usage_before, self.usage = self.usage, None

    def take(self, update: StreamResponse) -> Iterator[str]:
        """Record an update, and yield the text of new parts of the result. Raises `PermanentAgentError` for a result above the limit."""
        match update.WhichOneof("payload"):
            case "task":
                self._note(update.task.id, update.task.context_id, update.task.metadata)
                self._note_status(update.task.status)
                self._note_result(update.task)
            case "status_update":
                change = update.status_update
                self._note(change.task_id, change.context_id, change.metadata)
                self._note_status(change.status)
            case "artifact_update":
                part = update.artifact_update
                self._note(part.task_id, part.context_id, part.metadata)
                self._size += part.ByteSize()
                self._extend(part.artifact, append=part.append)
                yield _text_of(part.artifact.parts)
                if not part.append or part.last_chunk:
                    yield "\n"
            case "message":
                self._note("", update.message.context_id, update.message.metadata)
                self.answer = update.message
                self._size += update.message.ByteSize()
        if self._size > self.most_bytes:
            raise outbound.too_large(self.most_bytes)

    def _note(self, task: str, context: str, metadata: Any) -> None:
        self.task, self.context = task or self.task, context or self.context
        usage = json_format.MessageToDict(metadata).get("usage")
        if usage is not None and usage != self._usage_before:
            self.usage = _plain(usage)

    def _note_status(self, status: TaskStatus) -> None:
        # After its final status, an agent may still send an update that it was late with.
        if self.status.state not in _FINAL:
            self.status = status

    def _note_result(self, task: Task) -> None:
        self._size = task.ByteSize()
        if task.artifacts:
            self.artifacts = {each.artifact_id: _pieces(each.parts) for each in task.artifacts}

    def _extend(self, artifact: Artifact, *, append: bool) -> None:
        known = self.artifacts.setdefault(artifact.artifact_id, [])
        if not append:
            known.clear()
        for piece in _pieces(artifact.parts):
            if isinstance(piece, list) and known and append and isinstance(known[-1], list):
                known[-1] += piece
            else:
                known.append(piece)

    def output(self) -> Output:
        """Return what the agent produced: its artifacts, or else its last message. Raises `InvalidAnswer`."""
        pieces = [piece for artifact in self.artifacts.values() for piece in artifact]
        parts = [Part(text="".join(piece)) if isinstance(piece, list) else piece for piece in pieces]
        if not parts:
            parts = list((self.answer or self.status.message).parts)
        text = _text_of(parts) or None
        try:
            data = [_plain(json_format.MessageToDict(part.data)) for part in parts if part.HasField("data")]
        except ValueError as error:
            raise InvalidAnswer(("output.data", "contains a number that JSON does not know")) from error
        files = [_file(part) for part in parts if part.HasField("url") or part.HasField("raw")]
        value: Any = None if not data else data[0] if len(data) == 1 else data
        if files:
            value = {"files": files} if value is None else {"data": value, "files": files}
        return Output(text, value) if text or value is None else Output(None, value, "application/json")


def _pieces(parts: Iterable[Part]) -> list[Piece]:
    return [[part.text] if part.HasField("text") else part for part in parts]


def _text_of(parts: Iterable[Part]) -> str:
    return "\n\n".join(part.text for part in parts if part.HasField("text") and part.text)


def _plain(value: Any) -> Any:
    """Return the JSON with whole numbers as integers, because the protocol sends all numbers as floats."""
    if isinstance(value, float) and value.is_integer() and abs(value) <= LARGEST_WHOLE:
        return int(value)
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, list) else value


def _short(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()[:DIGITS] if name else ""


def _file(part: Part) -> dict[str, str]:
    place = {"url": part.url} if part.HasField("url") else {"base64": base64.b64encode(part.raw).decode()}
    named = {"name": part.filename, "media_type": part.media_type}
    return {**{name: value for name, value in named.items() if value}, **place}


def _metadata_of(request: AgentRequest) -> Mapping[str, Any]:
    """Return the metadata of a message. It contains the callback's token only if the role's options share it with the agent."""
    share = request.settings.options.get("share_callback", False)
    if not isinstance(share, bool):
        raise ConfigurationError("The option share_callback must be true or false.")
    facts = {
        "job_id": str(request.activity_id),
        "execution_id": str(request.run_id),
        "attempt": request.attempt,
        "agent": request.agent_role,
        "wake_reason": request.wake_reason,
        "priority": request.priority,
        "deadline": request.deadline.isoformat(),
    }
    if share:
        facts["callback"] = {"url": request.callback.url, "token": request.callback.token}
    return facts


async def _look_up(client: Client, task: str) -> Task:
    return await client.get_task(GetTaskRequest(id=task, history_length=0))


async def _cancel(client: Client, task: str) -> None:
    with suppress(A2AError):  # the task has ended meanwhile, or cannot be cancelled
        await client.cancel_task(CancelTaskRequest(id=task))


@contextmanager
def _plain_errors(request: AgentRequest, endpoint: str) -> Iterator[None]:
    """Translate the library's exceptions in this block into `AgentError`s."""
    try:
        with outbound.plain_errors(endpoint, request.timeout_seconds):
            yield
    except AgentError:
        raise
    except A2AError as error:
        raise _error_of_refusal(error, request) from error
    except (ValueError, TypeError, LookupError, AttributeError, RuntimeError, json_format.Error) as error:
        # The library does not validate what it receives, so an unexpected answer may fail anywhere in it.
        raise InvalidAnswer(("", f"it does not follow the protocol ({type(error).__name__})")) from error


def _error_of_refusal(error: A2AError, request: AgentRequest) -> AgentError:
    cause = error.__cause__
    if isinstance(cause, httpx.HTTPStatusError):
        answer = cause.response
        return error_of_status(answer.status_code, answer.content, answer.headers.get("retry-after"), request)
    message = f"The agent answered with an error: {redaction.excerpt_for(request, str(error))}"
    if isinstance(error, (InternalError, A2AClientError)):
        return RetryableAgentError(message, code="agent_failed")
    return PermanentAgentError(message)
