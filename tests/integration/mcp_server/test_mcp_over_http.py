"""Over HTTP each client sends its own token. Pages in a browser and the environment of the server give no access."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx2
import pytest
import uvicorn
from mcp.client.streamable_http import streamable_http_client
from mcp_types import CallToolResult

from orchestrator.mcp import server
from orchestrator.mcp.server import Binding
from tenants import tokens
from tenants.context import tenant_scope
from tenants.models import ApiToken, Tenant
from tests.cases import in_one_test
from tests.engine import Engine
from tests.integration.mcp_server.assistants import Assistant, run_with_client, text_of
from tests.questions import Questions

LIST = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}}
MISCALLED = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": 7}}
HEADERS = {"Accept": "application/json, text/event-stream", "Content-Type": "application/json"}


PAGE = "https://assistant.example"
NAMED = "mcp.example:443"


@pytest.fixture
def address(site: str) -> Iterator[str]:
    """The address of an MCP server in a thread of the test's process, which the scripts of PAGE may call."""
    listening = socket.create_server(("127.0.0.1", 0))
    port = listening.getsockname()[1]
    http_server = uvicorn.Server(
        uvicorn.Config(
            server.application(site, Binding("127.0.0.1", port, hosts=[NAMED], origins=[PAGE])),
            log_level="warning",
            lifespan="on",
        )
    )
    thread = threading.Thread(target=http_server.run, kwargs={"sockets": [listening]})
    thread.start()
    while not http_server.started:
        assert thread.is_alive()
        time.sleep(0.01)
    yield f"http://127.0.0.1:{port}/mcp"
    http_server.should_exit = True
    thread.join(timeout=60)
    assert not thread.is_alive()


def call(address: str, headers: dict[str, str], tool: str, /, **arguments: Any) -> CallToolResult:
    """Call a tool with the SDK's client and these headers."""

    async def call_with_headers() -> Any:
        async with httpx2.AsyncClient(headers=headers) as client:
            transport = streamable_http_client(address, http_client=client)
            return await run_with_client(transport, lambda connected: connected.call_tool(tool, arguments))

    result: CallToolResult = asyncio.run(call_with_headers())
    return result


def bearer(token: str, **more: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}", **more}


def post(address: str, **headers: str) -> httpx2.Response:
    return httpx2.post(address, json=LIST, headers={**HEADERS, **headers}, timeout=30)


def test_each_client_sees_the_data_of_its_own_token(
    address: str, token_of: Callable[..., str], questions: Questions, other_tenant: Tenant
) -> None:
    gate = questions.gate()

    mine = call(address, bearer(token_of()), "inbox")
    theirs = call(address, bearer(token_of("admin", other_tenant)), "inbox")

    assert [row["id"] for row in mine.structured_content["results"]] == [str(gate.pk)]
    assert theirs.structured_content["results"] == []


def test_a_decision_can_be_shown_and_confirmed_over_http(
    address: str, token_of: Callable[..., str], questions: Questions
) -> None:
    gate, anna, ben = questions.gate(), bearer(token_of("reviewer")), bearer(token_of("reviewer"))
    arguments = {"id": str(gate.pk), "decision": "approve"}
    question = call(address, anna, "show_decision", **arguments).structured_content

    stolen = call(address, ben, "confirm_decision", **arguments, confirmation=question["confirmation"])
    decision = call(address, anna, "confirm_decision", **arguments, confirmation=question["confirmation"])

    assert stolen.structured_content["error"]["code"] == "not_confirmed"
    assert decision.structured_content["status"] == "approved", text_of(decision)


def test_an_agent_names_its_run_in_a_header(
    address: str, accept_work: Callable[..., tuple[Any, Assistant]], engine: Engine, acme: Tenant
) -> None:
    activity_id, _ = accept_work()
    request = engine.agent.calls[-1]
    headers = bearer(request.callback.token, **{server.RUN_ID: str(request.run_id)})

    done = call(address, headers, "complete", content="# Bees")

    assert not done.is_error, text_of(done)
    assert engine.status(acme, activity_id) == "done"


@in_one_test(
    "headers",
    [
        {},
        {"Authorization": "Bearer"},
        {"Authorization": "Basic YW5uOnNlY3JldA=="},
        {"Authorization": "Bearer orc_" + 43 * "x"},
        {"Authorization": "Bearer orc_x", "X-Execution-Id": "0198a5c2-7d3e-7c41-9c0a-6f2b1d4e8a90"},
        {"Authorization": "Bearer orc_x", "X-Execution-Id": "../../usage"},
    ],
    ids=["none", "empty", "basic", "wrong", "wrong for a run", "no run"],
)
def test_without_a_valid_token_the_tools_are_not_listed(
    address: str,
    tenant: Tenant,
    monkeypatch: pytest.MonkeyPatch,
    token_of: Callable[..., str],
    headers: dict[str, str],
) -> None:
    monkeypatch.setenv("ORCHESTRATOR_TOKEN", token_of())

    answer = post(address, **headers)

    assert (answer.status_code, answer.headers["www-authenticate"]) == (401, 'Bearer error="invalid_token"')
    assert "orc_x" not in answer.text


def test_tokens_of_runs_and_of_people_are_not_interchangeable(
    address: str,
    accept_work: Callable[..., tuple[Any, Assistant]],
    engine: Engine,
    token_of: Callable[..., str],
) -> None:
    accept_work()
    request = engine.agent.calls[-1]

    as_person = post(address, **bearer(request.callback.token))
    as_run = post(address, **bearer(token_of()), **{server.RUN_ID: str(request.run_id)})

    assert (as_person.status_code, as_run.status_code) == (401, 401)


def test_a_revoked_token_is_no_longer_accepted(
    address: str, token_of: Callable[..., str], tenant: Tenant
) -> None:
    secret = token_of()
    before = call(address, bearer(secret), "inbox")
    with tenant_scope(tenant.pk):
        tokens.revoke(ApiToken.objects.get())

    after = call(address, bearer(secret), "inbox")

    assert (before.is_error, after.is_error) == (False, True)
    assert after.structured_content["error"]["status"] == 401


@in_one_test(
    ("headers", "status"),
    [
        ({"Host": "evil.example"}, 421),
        ({"Host": "evil.example:80"}, 421),
        ({"Host": "mcp.example:80"}, 421),
        ({"Host": "127.0.0.1:1"}, 421),
        ({"Origin": "https://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": "http://localhost:3000"}, 403),
        ({"Content-Type": "text/plain"}, 400),
    ],
)
def test_pages_in_a_browser_cannot_use_the_server(
    address: str, token_of: Callable[..., str], headers: dict[str, str], status: int
) -> None:
    assert post(address, **bearer(token_of()), **headers).status_code == status


@in_one_test(
    ("headers", "status"), [({"Host": "evil.example"}, 421), ({"Origin": "https://evil.example"}, 403)]
)
def test_a_foreign_page_is_refused_before_its_token_is_checked(
    address: str, headers: dict[str, str], status: int
) -> None:
    assert post(address, **headers).status_code == status


@in_one_test("host", [NAMED, "mcp.example"])
def test_a_client_of_a_proxy_with_the_usual_port_may_leave_the_port_out_of_its_host_header(
    address: str, token_of: Callable[..., str], host: str
) -> None:
    assert post(address, **bearer(token_of()), Host=host).status_code == 200


def test_the_scripts_of_an_allowed_page_can_call_the_server(
    address: str, token_of: Callable[..., str]
) -> None:
    wanted = {
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization,content-type",
    }

    asked = httpx2.options(address, headers={"Origin": PAGE, **wanted})
    called = post(address, **bearer(token_of()), Origin=PAGE)

    assert asked.status_code == 200
    assert {"authorization", "content-type"} <= set(
        asked.headers["access-control-allow-headers"].replace(" ", "").split(",")
    )
    assert "POST" in asked.headers["access-control-allow-methods"]
    for answer in (asked, called):
        assert answer.headers["access-control-allow-origin"] == PAGE
    assert "tools" in called.json()["result"]


@in_one_test("method", ["GET", "DELETE", "PUT"])
def test_only_calls_are_answered_because_there_are_no_sessions(
    address: str, token_of: Callable[..., str], method: str
) -> None:
    answer = httpx2.request(
        method, address, headers={**bearer(token_of()), "Accept": "text/event-stream"}, timeout=30
    )

    assert (answer.status_code, answer.headers["allow"]) == (405, "POST")


def test_a_body_that_is_too_large_is_refused(address: str, token_of: Callable[..., str]) -> None:
    headers = {**HEADERS, **bearer(token_of()), "Content-Length": str(server.api.MOST_BYTES + 1)}

    with httpx2.Client() as client:
        answer = client.post(
            address, content=b"{}" + b" " * (server.api.MOST_BYTES - 1), headers=headers, timeout=30
        )

    assert answer.status_code == 413


@in_one_test("body", [b"", b"[]", b"{", b"\xff\xfe", b"[" * 50_000, json.dumps(MISCALLED).encode()])
def test_malformed_messages_do_not_stop_the_server(
    address: str, token_of: Callable[..., str], body: bytes
) -> None:
    headers = {**HEADERS, **bearer(token_of())}

    answer = httpx2.post(address, content=body, headers=headers, timeout=30)

    assert 200 <= answer.status_code < 500
    assert post(address, **headers).status_code == 200
