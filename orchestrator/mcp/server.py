"""The server of the official SDK, with the caller's tools, on standard input and output or over streamable HTTP.

Over HTTP every request brings a token of its own, and is answered with what that token opens. No token of the server's own is used for
anybody, and nothing is remembered from one request to the next but that a token was good a moment ago: there are no sessions that could be
taken over. A page in a browser can do nothing here: requests must name this server as their host, and must come from no page but those
that were allowed (DNS rebinding).
"""

from __future__ import annotations

import hashlib
import json
import logging
import socket
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import anyio
import httpx2
import uvicorn
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server
from mcp.server.transport_security import TransportSecuritySettings
from mcp.shared.exceptions import MCPError
from mcp_types import (
    INVALID_PARAMS,
    CallToolRequestParams,
    CallToolResult,
    ListToolsResult,
    PaginatedRequestParams,
)
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from orchestrator.mcp import agent_tools, api, people_tools
from orchestrator.mcp.api import Access, Api, Refusal, Unusable
from orchestrator.mcp.tools import Tool, use

PATH = "/mcp"
RUN_ID = "X-Execution-Id"  # as the protocol of agents calls a run
LOOPBACK = ("127.0.0.1", "localhost", "::1")
REMEMBERED_SECONDS = 30.0  # that a token was good; what a tool does is decided by the API each time
MOST_REMEMBERED = 1_000
MOST_AT_ONCE = 200
INSTRUCTIONS = f"For agents: {agent_tools.INSTRUCTIONS}\n\nFor people: {people_tools.INSTRUCTIONS}"

_ACCESS = "orchestrator.access"


@dataclass(frozen=True, slots=True)
class Place:
    """Where the server listens, as whom it may be addressed (`host:port`), and from which pages (origins) beside its own."""

    host: str
    port: int
    hosts: Sequence[str] = ()
    origins: Sequence[str] = ()


def application(site: str, place: Place, *, only: Sequence[str] = ()) -> ASGIApp:
    """The ASGI application for the orchestrator at `site`."""
    serving = server(_access_of, instructions=INSTRUCTIONS, only=only)
    inner = serving.streamable_http_app(
        streamable_http_path=PATH,
        json_response=True,
        stateless_http=True,
        max_request_body_size=api.MOST_BYTES,
        transport_security=TransportSecuritySettings(
            allowed_hosts=[*_own_names(place), *place.hosts], allowed_origins=list(place.origins)
        ),
    )
    return _Door(inner, site)


def serve(site: str, place: Place, *, only: Sequence[str] = ()) -> None:
    """Serve until SIGTERM or SIGINT; says where on standard output. Raises `OSError` when the port is taken."""
    family = socket.AF_INET6 if ":" in place.host else socket.AF_INET
    listening = socket.create_server((place.host, place.port), family=family)
    port = listening.getsockname()[1]
    settled = Place(place.host, port, place.hosts, place.origins)
    config = uvicorn.Config(
        application(site, settled, only=only),
        log_level="warning",
        access_log=False,
        server_header=False,
        limit_concurrency=MOST_AT_ONCE,
        lifespan="on",
    )
    shown = f"[{place.host}]" if ":" in place.host else place.host
    print(f"mcp: http://{shown}:{port}{PATH}", flush=True)  # noqa: T201  # a command tells where it is
    uvicorn.Server(config).run(sockets=[listening])


def _own_names(place: Place) -> list[str]:
    """A server that others can reach has the names that it was given, and no others."""
    if place.host not in LOOPBACK:
        return []
    return [f"{name}:{place.port}" for name in ("127.0.0.1", "localhost", "[::1]")]


def _access_of(context: Context) -> Access:
    assert context.request is not None  # noqa: S101  # it came over HTTP
    found: Access = context.request.scope[_ACCESS]  # no request is let in without
    return found


@dataclass(slots=True)
class _Door:
    """Lets in who brings a token that the API knows."""

    inner: ASGIApp
    site: str
    good_until: OrderedDict[bytes, float] = field(default_factory=OrderedDict)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.inner(scope, receive, send)
            return
        try:
            caller = _caller(self.site, Request(scope))
            await self._check(caller)
        except Unusable as error:
            await _refuse(send, 401, "invalid_token", str(error))
        except Refusal as refusal:
            if refusal.status in (401, 404, 429):
                await _refuse(send, 401, "invalid_token", refusal.detail)
            else:
                await _refuse(send, 503, refusal.code, refusal.detail)
        else:
            await self.inner({**scope, _ACCESS: caller}, receive, send)

    async def _check(self, caller: Access) -> None:
        """Raises `Refusal` when the API does not know the token. What it opens is asked with each call."""
        known = hashlib.sha256(f"{caller.root}\n{caller.token}".encode()).digest()
        if self.good_until.get(known, 0.0) > time.monotonic():
            return
        async with api.client() as client:
            try:
                await Api(client, caller).get("" if caller.of_run else "usage/")
            except Refusal as refusal:
                # Known, but not for this, or not any more, or not now.
                if refusal.status not in (403, 409, 429) or refusal.code == "too_many_failures":
                    raise
        self.good_until[known] = time.monotonic() + REMEMBERED_SECONDS
        self.good_until.move_to_end(known)
        while len(self.good_until) > MOST_REMEMBERED:
            self.good_until.popitem(last=False)


def _caller(site: str, request: Request) -> Access:
    """Whose request it is. Raises `Unusable`."""
    named = request.headers.getlist("Authorization")
    scheme, _, token = (named[0] if len(named) == 1 else "").strip().partition(" ")
    if scheme.lower() != "bearer" or not token.strip():
        raise Unusable("Send your own token: Authorization: Bearer <token>.")
    run_id = request.headers.get(RUN_ID)
    return (
        api.access_of_person(site, token.strip())
        if run_id is None
        else api.access_of_run(site, run_id, token.strip())
    )


async def _refuse(send: Send, status: int, code: str, detail: str) -> None:
    body = json.dumps({"error": code, "error_description": detail}).encode()
    headers: list[tuple[bytes, Any]] = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
    ]
    if status == 401:
        headers.append((b"www-authenticate", f'Bearer error="{code}"'.encode()))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


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
        return ListToolsResult(tools=[tool.describe() for tool in tools_for(access_of(context), only)])

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
