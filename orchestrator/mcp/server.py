"""The server of the official SDK, with the tools of whoever asks."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import anyio
import httpx2
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server
from mcp.shared.exceptions import MCPError
from mcp_types import (
    INVALID_PARAMS,
    CallToolRequestParams,
    CallToolResult,
    ListToolsResult,
    PaginatedRequestParams,
)

from orchestrator.mcp import agent_tools, api, people_tools
from orchestrator.mcp.access import Access
from orchestrator.mcp.api import Api, Refusal
from orchestrator.mcp.tools import Tool, use

logger = logging.getLogger(__name__)

NAME = "orchestrator"
BEAT_SECONDS = 20.0  # a third of the silence after which an agent that has reported once is taken for dead

Context = ServerRequestContext[httpx2.AsyncClient, Any]


def tools_for(access: Access, only: Sequence[str] = ()) -> tuple[Tool, ...]:
    """What this caller is offered; with `only`, no more than that."""
    offered = agent_tools.TOOLS if access.of_run else people_tools.TOOLS
    return tuple(tool for tool in offered if not only or tool.name in only)


def server(
    access_of: Callable[[Context], Access],
    *,
    instructions: str,
    only: Sequence[str] = (),
    on_progress: Callable[[Access], None] | None = None,
) -> Server[httpx2.AsyncClient]:
    """A server that asks for each request whose it is. `on_progress` is called after an agent has reported for the first time."""

    async def list_tools(context: Context, params: PaginatedRequestParams | None) -> ListToolsResult:
        return ListToolsResult(tools=[tool.described() for tool in tools_for(access_of(context), only)])

    async def call_tool(context: Context, params: CallToolRequestParams) -> CallToolResult:
        access = access_of(context)
        tool = next((each for each in tools_for(access, only) if each.name == params.name), None)
        if tool is None:
            raise MCPError(INVALID_PARAMS, f"There is no tool {params.name[:100]}.")
        result = await use(tool, Api(context.lifespan_context, access), params.arguments)
        if on_progress is not None and tool.name == "report_progress" and not result.is_error:
            on_progress(access)
        return result

    @asynccontextmanager
    async def with_client(_: Server[httpx2.AsyncClient]) -> AsyncIterator[httpx2.AsyncClient]:
        async with api.client() as client:
            yield client

    return Server(
        NAME,
        version=_version(),
        title="Orchestrator",
        instructions=instructions,
        lifespan=with_client,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
    )


async def serve_stdio(access: Access, *, only: Sequence[str] = ()) -> None:
    """Serve the one client on standard input and output until it goes away."""
    async with anyio.create_task_group() as tasks:
        heart = _Heart(tasks.start_soon)
        serving = server(
            lambda _: access,
            instructions=agent_tools.INSTRUCTIONS if access.of_run else people_tools.INSTRUCTIONS,
            only=only,
            on_progress=heart.begin if access.of_run else None,
        )
        async with stdio_server() as (reading, writing):
            await serving.run(reading, writing, serving.create_initialization_options())
        tasks.cancel_scope.cancel()


class _Heart:
    """Signs of life for an agent that cannot give them while it thinks, from its first report to its end or that of its run."""

    def __init__(self, start: Callable[..., object]) -> None:
        self._start, self._beats = start, False

    def begin(self, agent: Access) -> None:
        if not self._beats:
            self._beats = True
            self._start(self._beat, agent)

    async def _beat(self, agent: Access) -> None:
        async with api.client() as client:
            while await self._is_wanted(Api(client, agent)):
                pass

    async def _is_wanted(self, caller: Api) -> bool:
        await anyio.sleep(BEAT_SECONDS)
        try:
            answer = await caller.post("heartbeat/")
        except Refusal as refusal:
            logger.warning("Sign of life not taken: %s", refusal.code)
            # With these the run is over; the agent learns of it from whatever it calls next.
            return refusal.status not in (401, 404, 409)
        return answer.get("stop") is not True


def _version() -> str:
    try:
        return version("orchestrator")
    except PackageNotFoundError:
        return ""
