"""Assistants of people and agents: the official SDK's own client, and whose token it asks with."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from mcp import Client
from mcp.shared.exceptions import MCPError
from mcp_types import CallToolResult

from agents.contracts import AgentRequest
from orchestrator.mcp import api
from orchestrator.mcp.api import Access
from orchestrator.mcp.server import server


class Asker:
    """Somebody's assistant: each call is a connection of the SDK's client to a server of its own in this process."""

    def __init__(self, who: Access) -> None:
        self.access = who

    def tools(self) -> dict[str, Any]:
        async def listed(client: Client) -> Any:
            return await client.list_tools()

        return {tool.name: tool for tool in self._with(listed).tools}

    def call(self, tool: str, **arguments: Any) -> CallToolResult:
        async def called(client: Client) -> Any:
            return await client.call_tool(tool, arguments)

        found: CallToolResult = self._with(called)
        return found

    def use(self, tool: str, **arguments: Any) -> Any:
        """The answer of a call that must succeed."""
        result = self.call(tool, **arguments)
        assert not result.is_error, text_of(result)
        return result.structured_content

    def refused(self, tool: str, **arguments: Any) -> Any:
        """The error of a call that must fail, with its text as `text`."""
        result = self.call(tool, **arguments)
        assert result.is_error, result.structured_content
        return {**result.structured_content["error"], "text": text_of(result)}

    def _with(self, action: Callable[[Client], Any]) -> Any:
        return asyncio.run(asked(server(lambda _: self.access, instructions=""), action))


async def asked(of: Any, action: Callable[[Client], Any]) -> Any:
    """What the action gets from a server. An error of the protocol comes as itself, not in a group of those of the connection."""
    refusal: MCPError | None = None
    async with Client(of) as client:
        try:
            return await action(client)
        except MCPError as error:
            refusal = error
    raise refusal


def text_of(result: CallToolResult) -> str:
    return "\n".join(getattr(each, "text", "") for each in result.content)


def of_run(site: str, request: AgentRequest) -> Access:
    return api.access_of_run(site, str(request.run_id), request.callback.token)
