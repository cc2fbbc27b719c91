"""The MCP server of the official SDK with the caller's tools, on standard input and output or over streamable HTTP.

Over HTTP every request contains its own token, which decides what it may do. The server has no token of its own, and between requests it
only remembers for a moment that a token was valid, so there are no sessions to take over. Pages in a browser cannot use it: a request must
have an allowed Host header and no Origin header except allowed ones (against DNS rebinding).
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
from mcp.server.transport_security import TransportSecurityMiddleware, TransportSecuritySettings
from mcp.shared.exceptions import MCPError
from mcp_types import (
    INVALID_PARAMS,
    CallToolRequestParams,
    CallToolResult,
    ListToolsResult,
    PaginatedRequestParams,
)
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from orchestrator.mcp import agent_tools, api, people_tools
from orchestrator.mcp.api import Access, Api, InvalidAccess, Refusal
from orchestrator.mcp.tools import Tool, use

PATH = "/mcp"
RUN_ID = "X-Execution-Id"  # the agent protocol's name for a run
LOOPBACK = ("127.0.0.1", "localhost", "::1")
DEFAULT_PORTS = (":80", ":443")  # clients leave them out of the Host header
REMEMBERED_SECONDS = 30.0  # how long a token counts as valid; the API checks permissions at every call
MOST_REMEMBERED = 1_000
MOST_AT_ONCE = 200
INSTRUCTIONS = f"For agents: {agent_tools.INSTRUCTIONS}\n\nFor people: {people_tools.INSTRUCTIONS}"

_ACCESS = "orchestrator.access"


@dataclass(frozen=True, slots=True)
class Binding:
    """Where the server listens, and its allowed Host headers (`host:port`) and origins."""

    host: str
    port: int
    hosts: Sequence[str] = ()
    origins: Sequence[str] = ()


def application(site: str, binding: Binding, *, only: Sequence[str] = ()) -> ASGIApp:
    """Return the ASGI application for the orchestrator at `site`."""
    serving = server(_access_of, instructions=INSTRUCTIONS, only=only)
    security = TransportSecuritySettings(
        allowed_hosts=_allowed_hosts(binding), allowed_origins=list(binding.origins)
    )
    inner = serving.streamable_http_app(
        streamable_http_path=PATH,
        json_response=True,
        stateless_http=True,
        max_request_body_size=api.MOST_BYTES,
        transport_security=security,
    )
    # A browser asks without a token whether a page may call the server. So that is answered before the token is checked.
    for_pages = CORSMiddleware(
        _TokenCheck(inner, site), allow_origins=binding.origins, allow_methods=["POST"], allow_headers=["*"]
    )
    return _RequestCheck(for_pages, TransportSecurityMiddleware(security))


def serve(site: str, binding: Binding, *, only: Sequence[str] = ()) -> None:
    """Serve until SIGTERM or SIGINT, and print the URL. Raises `OSError` if the port is taken."""
    family = socket.AF_INET6 if ":" in binding.host else socket.AF_INET
    listening = socket.create_server((binding.host, binding.port), family=family)
    port = listening.getsockname()[1]
    bound = Binding(binding.host, port, binding.hosts, binding.origins)
    config = uvicorn.Config(
        application(site, bound, only=only),
        log_level="warning",
        access_log=False,
        server_header=False,
        limit_concurrency=MOST_AT_ONCE,
        lifespan="on",
    )
    host = f"[{binding.host}]" if ":" in binding.host else binding.host
    print(f"mcp: http://{host}:{port}{PATH}", flush=True)  # noqa: T201  # the output of a command
    uvicorn.Server(config).run(sockets=[listening])


def _allowed_hosts(binding: Binding) -> list[str]:
    """Return the allowed Host headers: the configured ones, and those of loopback unless others can reach the server."""
    names = ("127.0.0.1", "localhost", "[::1]") if binding.host in LOOPBACK else ()
    hosts = [*(f"{name}:{binding.port}" for name in names), *binding.hosts]
    return [*hosts, *(host.rpartition(":")[0] for host in hosts if host.endswith(DEFAULT_PORTS))]


def _access_of(context: Context) -> Access:
    assert context.request is not None  # noqa: S101  # always set over HTTP
    access: Access = context.request.scope[_ACCESS]  # set by `_TokenCheck`
    return access


@dataclass(slots=True)
class _RequestCheck:
    """Middleware that refuses requests of foreign pages, and other methods than POST, because there are no sessions."""

    inner: ASGIApp
    security: TransportSecurityMiddleware

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        answer: Response | None = None
        if scope["type"] == "http":
            answer = await self.security.validate_request(Request(scope))
            if answer is None and scope["method"] not in ("POST", "OPTIONS"):
                answer = Response("Send calls with POST.", 405, {"Allow": "POST"})
        await (answer or self.inner)(scope, receive, send)


@dataclass(slots=True)
class _TokenCheck:
    """Middleware that refuses requests without a token that the API knows."""

    inner: ASGIApp
    site: str
    valid_until: OrderedDict[bytes, float] = field(default_factory=OrderedDict)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.inner(scope, receive, send)
            return
        try:
            caller = _caller(self.site, Request(scope))
            await self._check(caller)
        except InvalidAccess as error:
            await _refuse(send, 401, "invalid_token", str(error))
        except Refusal as refusal:
            if refusal.status in (401, 404, 429):
                await _refuse(send, 401, "invalid_token", refusal.detail)
            else:
                await _refuse(send, 503, refusal.code, refusal.detail)
        else:
            await self.inner({**scope, _ACCESS: caller}, receive, send)

    async def _check(self, caller: Access) -> None:
        """Raise `Refusal` if the API does not know the token. The API checks its permissions at each call."""
        digest = hashlib.sha256(f"{caller.root}\n{caller.token}".encode()).digest()
        if self.valid_until.get(digest, 0.0) > time.monotonic():
            return
        async with api.client() as client:
            try:
                await Api(client, caller).get("" if caller.of_run else "usage/")
            except Refusal as refusal:
                # The token is known, but lacks a permission, its run is over, or it is throttled.
                if refusal.status not in (403, 409, 429) or refusal.code == "too_many_failures":
                    raise
        self.valid_until[digest] = time.monotonic() + REMEMBERED_SECONDS
        self.valid_until.move_to_end(digest)
        while len(self.valid_until) > MOST_REMEMBERED:
            self.valid_until.popitem(last=False)


def _caller(site: str, request: Request) -> Access:
    """Return the access that the request's headers contain. Raises `InvalidAccess`."""
    headers = request.headers.getlist("Authorization")
    scheme, _, token = (headers[0] if len(headers) == 1 else "").strip().partition(" ")
    if scheme.lower() != "bearer" or not token.strip():
        raise InvalidAccess("Send your own token: Authorization: Bearer <token>.")
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
BEAT_SECONDS = 20.0  # a third of the time after which a silent agent counts as dead

Context = ServerRequestContext[httpx2.AsyncClient, Any]


def tools_for(access: Access, only: Sequence[str] = ()) -> tuple[Tool, ...]:
    """Return the tools of this caller, limited to the names in `only`, if there are any."""
    offered = agent_tools.TOOLS if access.of_run else people_tools.TOOLS
    return tuple(tool for tool in offered if not only or tool.name in only)


def server(
    access_of: Callable[[Context], Access],
    *,
    instructions: str,
    only: Sequence[str] = (),
    on_progress: Callable[[Access], None] | None = None,
) -> Server[httpx2.AsyncClient]:
    """Return a server that determines the access of each request. `on_progress` is called after each progress report of an agent."""

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
    """Serve one client on standard input and output until it disconnects."""
    async with anyio.create_task_group() as tasks:
        heartbeat = _Heartbeat(tasks.start_soon)
        serving = server(
            lambda _: access,
            instructions=agent_tools.INSTRUCTIONS if access.of_run else people_tools.INSTRUCTIONS,
            only=only,
            on_progress=heartbeat.begin if access.of_run else None,
        )
        async with stdio_server() as (reading, writing):
            await serving.run(reading, writing, serving.create_initialization_options())
        tasks.cancel_scope.cancel()


class _Heartbeat:
    """Sends heartbeats for an agent, which cannot send them while it thinks, from its first report to the end of its run."""

    def __init__(self, start: Callable[..., object]) -> None:
        self._start, self._started = start, False

    def begin(self, agent: Access) -> None:
        if not self._started:
            self._started = True
            self._start(self._beat, agent)

    async def _beat(self, agent: Access) -> None:
        async with api.client() as client:
            while await self._send_one(Api(client, agent)):
                pass

    async def _send_one(self, caller: Api) -> bool:
        """Send a heartbeat, and return whether the run continues."""
        await anyio.sleep(BEAT_SECONDS)
        try:
            answer = await caller.post("heartbeat/")
        except Refusal as refusal:
            logger.warning("Heartbeat refused: %s", refusal.code)
            # These mean that the run is over; the agent learns it from its next call.
            return refusal.status not in (401, 404, 409)
        return answer.get("stop") is not True


def _version() -> str:
    try:
        return version("orchestrator")
    except PackageNotFoundError:
        return ""
