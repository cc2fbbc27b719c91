"""Assistants of people and agents: the official SDK's client with a token."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from mcp import Client
from mcp.shared.exceptions import MCPError
from mcp_types import CallToolResult
from rest_framework import serializers

from agents.contracts import AgentRequest
from orchestrator.mcp import api
from orchestrator.mcp.api import Access
from orchestrator.mcp.server import server


class Assistant:
    """An assistant. Each call connects the SDK's client to a new server in this process."""

    def __init__(self, access: Access) -> None:
        self.access = access

    def tools(self) -> dict[str, Any]:
        async def list_tools(client: Client) -> Any:
            return await client.list_tools()

        return {tool.name: tool for tool in self._with(list_tools).tools}

    def call(self, tool: str, **arguments: Any) -> CallToolResult:
        async def call_tool(client: Client) -> Any:
            return await client.call_tool(tool, arguments)

        result: CallToolResult = self._with(call_tool)
        return result

    def use(self, tool: str, **arguments: Any) -> Any:
        """Return the content of a call that must succeed."""
        result = self.call(tool, **arguments)
        assert not result.is_error, text_of(result)
        return result.structured_content

    def use_refused(self, tool: str, **arguments: Any) -> Any:
        """Return the error of a call that must fail, with its text as `text`."""
        result = self.call(tool, **arguments)
        assert result.is_error, result.structured_content
        return {**result.structured_content["error"], "text": text_of(result)}

    def _with(self, action: Callable[[Client], Any]) -> Any:
        return asyncio.run(run_with_client(server(lambda _: self.access, instructions=""), action))


async def run_with_client(server_or_transport: Any, action: Callable[[Client], Any]) -> Any:
    """Return the action's result. An error of the protocol is raised itself, not in an exception group of the connection."""
    refusal: MCPError | None = None
    async with Client(server_or_transport) as client:
        try:
            return await action(client)
        except MCPError as error:
            refusal = error
    raise refusal


def disagreements(schema: Mapping[str, Any], receiver: serializers.Serializer[Any]) -> Iterator[str]:
    """Yield where the schema of a tool demands or allows something else than the receiver of the call. It may have fewer members."""
    required = {name for name, field in receiver.fields.items() if field.required}
    if required & schema["properties"].keys() != set(schema["required"]) & receiver.fields.keys():
        yield f"required: {schema['required']}, but {sorted(required)}"
    for name, member in schema["properties"].items():
        field = receiver.fields.get(name)
        limits = {
            "maxLength": getattr(field, "max_length", None),
            "minLength": None if getattr(field, "allow_blank", None) is None else int(not field.allow_blank),  # type: ignore[union-attr]
            "minimum": getattr(field, "min_value", None),
            "maximum": getattr(field, "max_value", None),
        }
        yield from (
            f"{name}: {limit} {member[limit]}, but {most}"
            for limit, most in limits.items()
            if limit in member and most is not None and member[limit] != most
        )
        if not set(member.get("enum", ())) <= set(getattr(field, "choices", member.get("enum", ()))):
            yield f"{name}: {member['enum']}, but {list(field.choices)}"  # type: ignore[union-attr]


def text_of(result: CallToolResult) -> str:
    return "\n".join(getattr(each, "text", "") for each in result.content)


def access_of_run_request(site: str, request: AgentRequest) -> Access:
    return api.access_of_run(site, str(request.run_id), request.callback.token)
