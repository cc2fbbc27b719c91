"""The client's table of operations against the server's own description: nothing is missing, nothing is made up."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

import pytest

from orchestrator_client import Client
from orchestrator_client.agent_runs import Callbacks
from orchestrator_client.operations import Operation

pytestmark = pytest.mark.usefixtures("database")

#: Operations of the schema that the client leaves out on purpose, each with its reason.
LEFT_OUT: dict[tuple[str, str], str] = {}

RUN = "/agent-runs/{run_id}"


def plain(path: str) -> str:
    """An address without the names of what stands in it."""
    return re.sub(r"\{\w+\}", "{}", path)


@cache
def own_operations() -> list[tuple[str, Operation[Any]]]:
    with Client("http://nowhere.invalid", "token") as client:
        return list(client.operations())


@cache
def own() -> dict[tuple[str, str], list[tuple[str, Operation[Any]]]]:
    found: dict[tuple[str, str], list[tuple[str, Operation[Any]]]] = {}
    callbacks = [(f"run.{one.described.__name__}", one, RUN) for one in Callbacks.operations()]
    for name, operation, root in [*((name, one, "") for name, one in own_operations()), *callbacks]:
        path = re.sub(r"/tools/\w+/$", "/tools/{}/", plain(root + operation.path))
        found.setdefault((operation.method, path), []).append((name, operation))
    return found


DESCRIBED: dict[str, Any] = {}


@pytest.fixture
def schema(client: Client) -> dict[str, Any]:
    """What the server tells of itself; it takes a while to write that down, so it is asked once."""
    if not DESCRIBED:
        answer = client._http.get("schema/", params={"format": "json"}, timeout=60)
        assert answer.status_code == 200
        DESCRIBED.update(answer.json())
    return DESCRIBED


@pytest.fixture
def served(schema: dict[str, Any]) -> dict[tuple[str, str], dict[str, Any]]:
    return {
        (method.upper(), plain(path.removeprefix("/api/v1"))): operation
        for path, methods in schema["paths"].items()
        for method, operation in methods.items()
        if method in ("get", "post", "put", "patch", "delete")
    }


def resolved(schema: dict[str, Any], part: dict[str, Any]) -> dict[str, Any]:
    if "$ref" in part:
        return schema["components"]["schemas"][part["$ref"].rpartition("/")[2]]
    return part


def properties(schema: dict[str, Any], part: dict[str, Any]) -> set[str]:
    found = resolved(schema, part)
    members = [inner for key in ("oneOf", "anyOf", "allOf") for inner in found.get(key, ())]
    return set(found.get("properties", ())).union(*(properties(schema, inner) for inner in members))


def test_every_operation_of_the_server_can_be_called(served: dict[tuple[str, str], Any]) -> None:
    missing = {operation for operation in served.keys() - own().keys() if operation not in LEFT_OUT}

    assert missing == set()
    assert LEFT_OUT.keys() <= served.keys(), "what the server no longer has need not be left out"


def test_nothing_can_be_called_that_the_server_does_not_have(served: dict[tuple[str, str], Any]) -> None:
    assert own().keys() - served.keys() == set()


def test_every_parameter_that_a_method_names_is_one_of_the_servers(
    schema: dict[str, Any], served: dict[tuple[str, str], Any]
) -> None:
    unknown = {}
    for address, calls in own().items():
        if address not in served:
            continue
        described = served[address]
        known = {parameter["name"] for parameter in described.get("parameters", ())}
        known |= {name.lower().replace("-", "_") for name in known}  # headers, Last-Event-ID above all
        for content in described.get("requestBody", {}).get("content", {}).values():
            known |= properties(schema, content["schema"])
        unknown |= {name: operation.sent - known for name, operation in calls if operation.sent - known}

    assert unknown == {}


def test_every_list_of_the_server_is_read_page_by_page(
    schema: dict[str, Any], served: dict[tuple[str, str], Any]
) -> None:
    from orchestrator_client.calls import Listing

    with Client("http://nowhere.invalid", "token") as client:
        listed = {
            ("GET", plain(value.operation.path))
            for group in vars(client).values()
            for value in vars(type(group)).values()
            if isinstance(value, Listing)
        }
    paged = {
        address
        for address, operation in served.items()
        if {parameter["name"] for parameter in operation.get("parameters", ())} >= {"cursor", "limit"}
        or address == ("GET", "/events/")  # the same, with `after` in the place of a cursor
    }

    assert paged - listed == set()
    assert listed - paged == set()


def test_every_change_that_the_server_guards_with_if_match_takes_an_etag(
    served: dict[tuple[str, str], Any],
) -> None:
    guarded = {
        address
        for address, operation in served.items()
        if "If-Match" in {parameter["name"] for parameter in operation.get("parameters", ())}
    }
    for address in guarded & own().keys():
        for _, operation in own()[address]:
            names = operation.addressed
            body = [{}] if "body" in operation.signature.parameters else []
            needed = {
                parameter.name: "x"
                for parameter in operation.signature.parameters.values()
                if parameter.kind is parameter.KEYWORD_ONLY and parameter.default is parameter.empty
            }
            request = operation.prepare(*["x"] * len(names), *body, etag='"7"', **needed)
            assert request.headers["If-Match"] == '"7"'
