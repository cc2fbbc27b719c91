"""Parses an agent's standard output into a result, in one of three formats. Memory is bounded whatever it prints.

    text         all of it is the output
    json         one object: ours, `{output, usage?, session_id?}`, or the closing event of a coding agent
    stream-json  one event per line; session and usage are reported as soon as they are read

It understands the events of several coding agents (see docs/command-line-agents.md), and ignores unknown events and lines that are not
JSON.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Any, Protocol

import orjson
from django.conf import settings

from agents.contracts import Completed, Output, RunLink, Usage
from agents.response_parser import InvalidAnswer, read_completed, session_id_from, usage_from
from tenants import strict_json

LONGEST_LIVE_LINE = 16_384  # logged even before the line ends
LONGEST_LINE = 4 * 1024 * 1024  # of an event; longer ones are ignored
_SESSION_KEYS = ("session_id", "sessionId", "thread_id", "conversation_id")
_INPUT = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens", "prompt_tokens")
_OUTPUT = ("output_tokens", "completion_tokens")


@dataclass(slots=True)
class AgentOutput:
    """The outcome of the program: a `result`, or its own message `error` of the kind `kind`, or the exception `invalid` for an invalid
    answer.
    """

    result: Completed | None = None
    invalid: InvalidAnswer | None = None
    error: str | None = None
    kind: str = ""


class Reader(Protocol):
    """Reads the output as it arrives. `turns` counts the model's answers, if the program reports them one by one."""

    @property
    def turns(self) -> int: ...

    def feed(self, chunk: bytes) -> None: ...

    def close(self) -> AgentOutput: ...


def reader_of(form: str, link: RunLink, *, on_stop: Callable[[str], None]) -> Reader:
    """Return a reader of this format. It calls `on_stop` with the reason when the engine answers a usage report with a reason to stop."""
    if form == "stream-json":
        return Events(link, on_stop)
    return Whole(link, as_json=form == "json")


@dataclass(slots=True)
class LiveLines:
    """Writes lines of plain text to the log of the run."""

    link: RunLink
    kind: str
    rest: bytearray = field(default_factory=bytearray)

    def feed(self, chunk: bytes) -> None:
        lines, separator, last = bytes(self.rest + chunk).rpartition(b"\n")
        self.rest = bytearray(last)
        if separator:
            self.link.log(self.kind, lines.decode("utf-8", "replace"))
        if len(self.rest) > LONGEST_LIVE_LINE:
            self.close()

    def close(self) -> None:
        if self.rest:
            self.link.log(self.kind, self.rest.decode("utf-8", "replace"))
            self.rest.clear()


@dataclass(slots=True)
class Whole:
    """Output that is text or one JSON object, read when the agent has ended. Text is logged as it arrives."""

    link: RunLink
    as_json: bool
    content: bytearray = field(default_factory=bytearray)
    live: LiveLines = field(init=False)

    def __post_init__(self) -> None:
        self.live = LiveLines(self.link, "text")

    @property
    def turns(self) -> int:
        return 0

    def feed(self, chunk: bytes) -> None:
        """Raises `InvalidAnswer` as soon as the output is too large."""
        self.content += chunk
        if not self.as_json:
            self.live.feed(chunk)
        if len(self.content) > settings.ORCHESTRATOR_AGENT_RESPONSE_MAX_BYTES:
            raise InvalidAnswer(
                ("output", f"is larger than {settings.ORCHESTRATOR_AGENT_RESPONSE_MAX_BYTES} bytes")
            )

    def close(self) -> AgentOutput:
        self.live.close()
        if not self.as_json:
            # NUL cannot be stored, and a broken character must not lose the whole output.
            text = bytes(self.content).decode("utf-8", "replace").replace("\x00", "")
            return AgentOutput(Completed(Output(content=text.strip())))
        try:
            return self._object()
        except strict_json.StrictJSONError as error:
            return AgentOutput(invalid=InvalidAnswer((error.path, error.message)))
        except InvalidAnswer as error:
            return AgentOutput(invalid=error)

    def _object(self) -> AgentOutput:
        answer = strict_json.loads(
            bytes(self.content), max_bytes=settings.ORCHESTRATOR_AGENT_RESPONSE_MAX_BYTES
        )
        if not isinstance(answer, list) and (not isinstance(answer, Mapping) or "type" not in answer):
            return AgentOutput(read_completed(answer))
        events = Events(self.link, lambda reason: None)
        for event in answer if isinstance(answer, list) else [answer]:
            events.process(event)
        return events.close()


@dataclass(slots=True)
class Events:
    """Newline-delimited JSON."""

    link: RunLink
    on_stop: Callable[[str], None]
    rest: bytearray = field(default_factory=bytearray)
    skipping: bool = False
    session: str | None = None
    usage: Usage = field(default_factory=Usage)
    by_message: dict[str, Usage] = field(default_factory=dict)
    last_text: str | None = None
    output: AgentOutput = field(default_factory=AgentOutput)
    answers: set[str] = field(default_factory=set)

    @property
    def turns(self) -> int:
        return len(self.answers)

    def feed(self, chunk: bytes) -> None:
        *lines, last = chunk.split(b"\n")
        for line in lines:
            if not self.skipping:
                self.rest += line
                self._line(bytes(self.rest))
            self.rest.clear()
            self.skipping = False
        self.rest += last
        if len(self.rest) > LONGEST_LINE:
            self.rest.clear()
            self.skipping = True

    def close(self) -> AgentOutput:
        if self.rest and not self.skipping:
            self._line(bytes(self.rest))
            self.rest.clear()
        if self.output.result is None and self.output.error is None and self.last_text is not None:
            self.output.result = self._build_result(Output(content=self.last_text))
        return self.output

    def _line(self, line: bytes) -> None:
        try:
            self.process(orjson.loads(line))
        except orjson.JSONDecodeError:
            return

    def process(self, event: Any) -> None:
        """Process one event. Its session is recorded first, because the run may end at any moment."""
        if not isinstance(event, Mapping):
            return
        session = session_id_from(next((event[key] for key in _SESSION_KEYS if event.get(key)), None), [])
        if session and session != self.session:
            self.session = session
            self.link.saw_session(session)
        for kind, text in live_lines(event):
            self.link.log(kind, text)
        self._count_usage(event)
        match event.get("type"):
            case "assistant":
                self._count_answer(event)
            case "result":
                self._read_result(event)
            case "item.completed":
                item = event.get("item")
                if isinstance(item, Mapping) and item.get("type") == "agent_message":
                    self.last_text = _text(item.get("text"))
            case "error" | "turn.failed":
                error = event.get("error")
                message = error.get("message") if isinstance(error, Mapping) else event.get("message")
                self.output = AgentOutput(error=_text(message) or "no reason given", kind="error")

    def _count_answer(self, event: Mapping[str, Any]) -> None:
        """Count each message once, because it may arrive in several events."""
        message = event.get("message")
        if isinstance(message, Mapping) and message.get("id"):
            self.answers.add(str(message["id"]))

    def _count_usage(self, event: Mapping[str, Any]) -> None:
        """Count each message once, however often it is reported. A closing event has the total."""
        if event.get("type") == "result":
            usage = _usage_of(event, event.get("usage") or event.get("stats"))
        elif event.get("type") == "turn.completed":
            usage = _sum([self.usage, _usage_of(event, event.get("usage"))])
        else:
            message = event.get("message")
            if not isinstance(message, Mapping) or not isinstance(message.get("usage"), Mapping):
                return
            self.by_message[str(message.get("id"))] = _usage_of(message, message["usage"])
            usage = _sum(list(self.by_message.values()))
        if usage in (self.usage, Usage()):
            return
        self.usage = usage
        if reason := self.link.count_usage(usage):
            self.on_stop(reason)

    def _read_result(self, event: Mapping[str, Any]) -> None:
        text, kind = event.get("result"), str(event.get("subtype") or "")
        if event.get("is_error") or kind.startswith("error") or event.get("status") == "error":
            self.output = AgentOutput(error=_text(text) or kind or "no reason given", kind=kind or "error")
            return
        if isinstance(event.get("output"), Mapping):
            self.output = AgentOutput(self._build_result(read_completed({"output": event["output"]}).output))
            return
        data = event.get("structured_output", text if isinstance(text, dict | list) else None)
        content = text if isinstance(text, str) else self.last_text if data is None else None
        self.output = AgentOutput(self._build_result(Output(content=content, data=data)))

    def _build_result(self, output: Output) -> Completed:
        return Completed(output, self.usage if self.usage != Usage() else None, self.session)


def live_lines(event: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield kind and text of the log lines of an event: the model's text, its tool calls and their answers."""
    name, message, item = event.get("type"), event.get("message"), event.get("item")
    if name in ("assistant", "user") and isinstance(message, Mapping):
        content = message.get("content")
        blocks = content if isinstance(content, list) else []
        if isinstance(content, str) and name == "assistant":
            yield "text", content
        yield from (line for block in blocks if isinstance(block, Mapping) for line in _lines_of_block(block))
    elif name == "item.completed" and isinstance(item, Mapping):
        yield from _lines_of_item(item)
    elif name in ("error", "turn.failed"):
        error = event.get("error")
        text = error.get("message") if isinstance(error, Mapping) else message
        yield "note", f"Error: {_text(text) or 'no reason given'}"
    elif name == "tool_use":
        yield (
            "tool_call",
            f"{event.get('tool_name') or event.get('name')} {_as_text(event.get('parameters') or event.get('input'))}",
        )
    elif name == "tool_result":
        yield "tool_result", _as_text(event.get("output") or event.get("content"))
    elif name == "message" and event.get("role") == "assistant" and isinstance(event.get("content"), str):
        yield "text", event["content"]


def _lines_of_block(block: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    match block.get("type"):
        case "text" if isinstance(block.get("text"), str) and block["text"].strip():
            yield "text", block["text"]
        case "thinking" if isinstance(block.get("thinking"), str) and block["thinking"].strip():
            yield "note", block["thinking"]
        case "tool_use":
            yield "tool_call", f"{block.get('name')} {_as_text(block.get('input'))}"
        case "tool_result":
            yield "tool_result", _as_text(block.get("content"))


def _lines_of_item(item: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    match item.get("type"):
        case "agent_message":
            yield "text", _text(item.get("text")) or ""
        case "reasoning":
            yield "note", _text(item.get("text")) or ""
        case "command_execution":
            yield "tool_call", f"$ {item.get('command')}"
            yield (
                "tool_result",
                f"{_as_text(item.get('aggregated_output'))}\nexit code {item.get('exit_code')}".lstrip("\n"),
            )
        case "mcp_tool_call":
            yield "tool_call", f"{item.get('server')}.{item.get('tool')} {_as_text(item.get('arguments'))}"
            yield "tool_result", _as_text(item.get("result") or item.get("error"))
        case "file_change" | "web_search" | "todo_list" as kind:
            yield (
                "note",
                f"{kind.replace('_', ' ')}: {_as_text({key: item[key] for key in item if key not in ('id', 'type')})}",
            )


def _as_text(value: Any) -> str:
    """Return text unchanged, a list of texts joined, and anything else as JSON."""
    if (
        isinstance(value, list)
        and value
        and all(isinstance(part, Mapping) and isinstance(part.get("text"), str) for part in value)
    ):
        return "\n".join(part["text"] for part in value)
    if isinstance(value, str):
        return value
    return "" if value is None else orjson.dumps(value, default=str).decode()


def _usage_of(event: Mapping[str, Any], usage: Any) -> Usage:
    """Read usage as coding agents report it; input includes tokens from a cache. Invalid values count as not reported."""
    counted = usage if isinstance(usage, Mapping) else {}
    plain = {
        "input_tokens": sum(value for key in _INPUT if type(value := counted.get(key)) is int and value > 0),
        "output_tokens": sum(
            value for key in _OUTPUT if type(value := counted.get(key)) is int and value > 0
        ),
        "cost_usd": event.get("total_cost_usd", event.get("cost_usd")),
        "model": event.get("model"),
    }
    errors: list[tuple[str, str]] = []
    result = usage_from(plain, errors)
    if result is None or errors:
        return replace(result or Usage(), cost_usd=None, model=None)
    return result


def _sum(parts: list[Usage]) -> Usage:
    costs = [part.cost_usd for part in parts if part.cost_usd is not None]
    return Usage(
        input_tokens=sum(part.input_tokens for part in parts),
        output_tokens=sum(part.output_tokens for part in parts),
        cost_usd=sum(costs, Decimal(0)) if costs else None,
        model=next((part.model for part in reversed(parts) if part.model), None),
    )


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None
