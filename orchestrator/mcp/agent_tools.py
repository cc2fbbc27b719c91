"""Tools of agents, with the token of one run: read the job, report progress, end the run, and ask people and other agents."""

from __future__ import annotations

from typing import Any

from agents.contracts import LINE_KINDS
from agents.tools import DEFINITIONS, ToolDefinition, object_schema, text_schema
from orchestrator.mcp.api import Answer, Api
from orchestrator.mcp.tools import Schema, Tool, anything, flag, key, one_of, whole_number

INSTRUCTIONS = (
    "You do one piece of work for the Orchestrator. get_job returns it again. With the other tools you report progress, and ask people or "
    "other agents for what you cannot do yourself. When an answer contains stop: true, your run is over: end at once, and do nothing more. "
    "People decide; you ask."
)

_USAGE = object_schema(
    (),
    input_tokens=whole_number("Tokens read, in the whole run so far.", 0, 10**12),
    output_tokens=whole_number("Tokens written, in the whole run so far.", 0, 10**12),
    cost_usd={
        "type": ["number", "string"],
        "description": "Cost of the whole run so far; a decimal as text is exact.",
    },
    model=text_schema("The model that was used.", 200),
)


async def _job(api: Api, arguments: dict[str, Any]) -> Answer:
    job = await api.get("")
    # It contains the token, which must not be stored with a conversation.
    job.pop("callback", None)
    return job


async def _skill(api: Api, arguments: dict[str, Any]) -> Answer:
    return await api.get(f"skills/{arguments['key']}/")


async def _progress(api: Api, arguments: dict[str, Any]) -> Answer:
    body = dict(arguments)
    progress = {name: body.pop(name) for name in ("message", "percent") if name in body}
    return await api.post("heartbeat/", {**body, **({"progress": progress} if progress else {})})


async def _log(api: Api, arguments: dict[str, Any]) -> Answer:
    return await api.post("log/", arguments)


async def _complete(api: Api, arguments: dict[str, Any]) -> Answer:
    body = dict(arguments)
    output = {name: body.pop(name) for name in ("content", "data", "content_type") if name in body}
    return await api.post("complete/", {"output": output, **body})


async def _fail(api: Api, arguments: dict[str, Any]) -> Answer:
    return await api.post("fail/", {"error": arguments})


def _request_tool(definition: ToolDefinition) -> Tool:
    async def call(api: Api, arguments: dict[str, Any]) -> Answer:
        return await api.post(f"tools/{definition.name}/", arguments)

    # Equal calls within a run count as one call.
    return Tool(
        definition.name,
        definition.description,
        _with_assignee_type(definition.input_schema)
        if definition.name == "reassign_task"
        else definition.input_schema,
        call,
        changes=True,
        repeatable=True,
    )


def _with_assignee_type(schema: Schema) -> Schema:
    """Add the optional kind of the assignee, which the agent protocol allows."""
    kind = one_of("Which of the two roles is set; optional.", "agent", "human")
    return {**schema, "properties": {**schema["properties"], "assignee_type": kind}}


#: The tools that end the run. Agents whose run ends with their process, such as command-line agents, do not get them.
ENDING = ("complete", "fail")

TOOLS: tuple[Tool, ...] = (
    Tool(
        "get_job",
        "Read your job again: the prompt, the input, the parameters, and why you were started (wake_reason and wakes, with what people "
        "answered). Changes nothing.",
        object_schema(),
        _job,
    ),
    Tool(
        "read_skill",
        "Read a skill of your job's manifest in full. Changes nothing.",
        object_schema(("key",), key=key("Key of the skill in the manifest.")),
        _skill,
    ),
    Tool(
        "report_progress",
        "Tell the people who wait how far the work is, and what it has used. stop: true in the answer means that nobody wants the work any "
        "more. The server then sends a heartbeat for you every 20 seconds, as long as it is connected to you on standard input; "
        "over HTTP report at least every 60 seconds from then on, or your run is declared lost.",
        object_schema(
            (),
            message=text_schema("What you are doing, in one line.", 500),
            percent={"type": "number", "minimum": 0, "maximum": 100, "description": "How much is done."},
            usage=_USAGE,
            session_id=text_schema("Your own id of this conversation, with which it can be continued.", 200),
        ),
        _progress,
        changes=True,
        repeatable=True,
    ),
    Tool(
        "log",
        "Write lines into the transcript of this run, which people read while you work.",
        object_schema(
            ("lines",),
            lines={
                "type": "array",
                "minItems": 1,
                "maxItems": 500,
                "items": object_schema(
                    ("kind", "text"),
                    at=text_schema("When it happened, as an ISO 8601 time with a zone. Left out: now.", 40),
                    kind=one_of("What the line is.", *LINE_KINDS),
                    text=text_schema("The line.", 16_384, minLength=0),
                ),
                "description": "The lines, oldest first.",
            },
        ),
        _log,
        changes=True,
    ),
    *map(_request_tool, DEFINITIONS),
    Tool(
        "complete",
        "Hand in the result and end this run. Give content, data or both.",
        object_schema(
            (),
            content={"type": "string", "description": "The result as text."},
            data=anything("The result as JSON."),
            content_type=text_schema("Media type of the content; text/markdown if left out.", 100),
            session_id=text_schema("Your own id of this conversation, with which it can be continued.", 200),
            usage=_USAGE,
        ),
        _complete,
        changes=True,
        repeatable=True,
    ),
    Tool(
        "fail",
        "Say that the work cannot be done, and end this run. For what a person could put right use report_blocker.",
        object_schema(
            ("message",),
            message=text_schema("What went wrong.", 2_000),
            code=text_schema("A short name of the kind of failure, such as rate_limited.", 100),
            retryable=flag("Whether another attempt could go better."),
            retry_after={
                "type": "number",
                "minimum": 0,
                "maximum": 86_400,
                "description": "The minimum number of seconds until the next attempt.",
            },
        ),
        _fail,
        changes=True,
        repeatable=True,
    ),
)
