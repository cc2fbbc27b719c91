"""Calls of the HTTP API, with JSON bodies and one exception for all errors.

Redirects are not followed, so a token is only sent to the configured address.

The address and the token (`Access`) come from the environment, or from the headers of a request:

ORCHESTRATOR_CALLBACK_URL, ORCHESTRATOR_CALLBACK_TOKEN    of a run, which command-line agents have in their environment
ORCHESTRATOR_URL, ORCHESTRATOR_TOKEN                      of a person or a program; with a callback URL, of a run
"""

from __future__ import annotations

import json
import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any
from urllib.parse import parse_qs, urlsplit
from uuid import UUID

import httpx2

SECONDS = 60.0  # for one call; the API itself waits at most ten for its servers
MOST_BYTES = 16 * 1024 * 1024  # of an answer: more than three times the largest output that the API accepts
LONGEST_DETAIL = 2_000

Answer = dict[str, Any]


class Refusal(Exception):
    """The API refused the call, or could not be reached. `str()` is for the caller of the tool and contains no secret."""

    def __init__(
        self, code: str, detail: str, *, status: int | None = None, problem: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__(detail)
        self.code, self.status, self.detail = code, status, detail[:LONGEST_DETAIL]
        self.problem = dict(problem or {})

    @property
    def errors(self) -> list[tuple[str, str]]:
        """The errors in the request, as path and message. The path "" is the whole request."""
        errors = self.problem.get("errors")
        rows = [each for each in errors if isinstance(each, dict)] if isinstance(errors, list) else []
        return [(str(each.get("path", "")), str(each.get("message", ""))) for each in rows]

    def __str__(self) -> str:
        status = f"{self.status} " if self.status else ""
        lines = [f"Refused ({status}{self.code}): {self.detail}"]
        lines += [f"- {path}: {message}" if path else f"- {message}" for path, message in self.errors]
        for name in ("required_role", "required_scope", "quota", "decision", "decided_by", "decided_at"):
            if self.problem.get(name):
                lines.append(f"{name.replace('_', ' ')}: {self.problem[name]}")
        if self.problem.get("retry_after"):
            lines.append(f"Try again after {self.problem['retry_after']} s.")
        if self.problem.get("stop") is True:
            lines.append("This run is over. Stop working on it: anything you send is ignored.")
        if self.problem.get("request_id"):
            lines.append(f"request id: {self.problem['request_id']}")
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class Api:
    """The API for one caller. Paths are relative to the root of `access`."""

    client: httpx2.AsyncClient
    access: Access

    async def get(self, path: str, **query: Any) -> Answer:
        """Send a GET request. Parameters that are None are left out. Raises `Refusal`."""
        return await self._call("GET", path, query=query)

    async def post(
        self, path: str, body: Mapping[str, Any] | None = None, *, key: str | None = None
    ) -> Answer:
        """Send a POST request. With a `key` it takes effect once, even if it is repeated. Raises `Refusal`."""
        return await self._call("POST", path, body=body or {}, key=key)

    async def _call(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, Any] | None = None,
        body: Mapping[str, Any] | None = None,
        key: str | None = None,
    ) -> Answer:
        headers = {"Authorization": f"Bearer {self.access.token}", "Accept": "application/json"}
        if key is not None:
            headers["Idempotency-Key"] = key
        content = None
        if body is not None:
            headers["Content-Type"] = "application/json"
            content = _encode_body(body)
        try:
            async with self.client.stream(
                method, self.access.root + path, params=_query(query or {}), content=content, headers=headers
            ) as response:
                text = await _read(response)
        except httpx2.HTTPError as error:
            raise Refusal(
                "unreachable",
                f"The orchestrator does not answer ({type(error).__name__}). "
                + ("It is unknown whether the request was executed." if method == "POST" else ""),
            ) from error
        return _answer(response, text)


def client() -> httpx2.AsyncClient:
    """Return an HTTP client, which the caller must close."""
    return httpx2.AsyncClient(
        verify=_trust(), follow_redirects=False, timeout=SECONDS, headers={"User-Agent": "orchestrator-mcp"}
    )


@cache
def _trust() -> ssl.SSLContext:
    """Return the TLS context. It is cached, because reading the machine's certificates takes 20 ms."""
    return httpx2.create_ssl_context()


def cursor_in(answer: Mapping[str, Any]) -> str | None:
    """Return the cursor of the next page of a list, from the URL in the answer."""
    next_url = answer.get("next")
    cursors = parse_qs(urlsplit(next_url).query).get("cursor") if isinstance(next_url, str) else None
    return cursors[0] if cursors else None


def _encode_body(body: Mapping[str, Any]) -> bytes:
    try:
        return json.dumps(body, allow_nan=False).encode()
    except (ValueError, RecursionError) as error:
        raise Refusal(
            "invalid_arguments", "The arguments contain numbers that JSON does not support."
        ) from error


def _query(parameters: Mapping[str, Any]) -> dict[str, str]:
    texts = {True: "true", False: "false"}
    return {
        name: texts[value] if isinstance(value, bool) else str(value)
        for name, value in parameters.items()
        if value is not None
    }


async def _read(response: httpx2.Response) -> bytes:
    body = bytearray()
    async for chunk in response.aiter_bytes():
        body += chunk
        if len(body) > MOST_BYTES:
            raise Refusal("too_large", "The answer of the orchestrator is too large.")
    return bytes(body)


def _answer(response: httpx2.Response, text: bytes) -> Answer:
    try:
        body = json.loads(text) if text else {}
    except (ValueError, RecursionError):
        body = None
    if response.is_success and isinstance(body, dict):
        return body
    if not isinstance(body, dict) or "code" not in body:
        # Not our API, or a proxy in front of it. Its text may be anything, so it is not passed on.
        detail = (
            f"The address answers with status {response.status_code}, but not like the orchestrator's API."
        )
        raise Refusal("unexpected_answer", detail, status=response.status_code)
    problem = dict(body)
    if (wait := response.headers.get("Retry-After", "")).isdigit():
        problem["retry_after"] = int(wait)
    raise Refusal(
        str(body["code"]), str(body.get("detail") or ""), status=response.status_code, problem=problem
    )


URL, TOKEN = "ORCHESTRATOR_URL", "ORCHESTRATOR_TOKEN"
CALLBACK_URL, CALLBACK_TOKEN = "ORCHESTRATOR_CALLBACK_URL", "ORCHESTRATOR_CALLBACK_TOKEN"

API = "/api/v1/"
_CALLBACK = re.compile(r"(?P<site>.*)/api/v1/agent-runs/(?P<run>[0-9a-fA-F-]{36})/?")
# Characters of a header value. Other characters are not in our tokens, and could inject a second header.
_TOKEN = re.compile(r"[\x21-\x7e]{1,8192}")


class InvalidAccess(ValueError):
    """The address or the token in the environment or a request is missing or invalid. The text contains no secret."""


@dataclass(frozen=True, slots=True)
class Access:
    """The root URL, with a trailing slash, and the token. The root is the API's, or that of one run's callbacks."""

    root: str
    token: str = field(repr=False)
    of_run: bool = False


def access_from_environment(environment: Mapping[str, str]) -> Access:
    """Read the access from the environment. If both are set, a run's token is used, because it allows less. Raises `InvalidAccess`."""
    if environment.get(CALLBACK_URL) and environment.get(CALLBACK_TOKEN):
        address, token, name = environment[CALLBACK_URL], environment[CALLBACK_TOKEN], CALLBACK_TOKEN
        if not _CALLBACK.fullmatch(_plain(address, CALLBACK_URL)):
            raise InvalidAccess(
                f"{CALLBACK_URL} is not the callback URL of a run, such as https://host/api/v1/agent-runs/<run id>/."
            )
    else:
        address, token, name = environment.get(URL, ""), environment.get(TOKEN, ""), TOKEN
        missing = [needed for needed, value in ((URL, address), (TOKEN, token)) if not value]
        if missing:
            raise InvalidAccess(
                f"{' and '.join(missing)} must be set: the address of the orchestrator, such as https://host, "
                f"and a personal token. For an agent, {CALLBACK_URL} and {CALLBACK_TOKEN} of its run."
            )
    _check_token(token, name)
    callback = _CALLBACK.fullmatch(_plain(address, URL))
    if callback:
        return access_of_run(callback["site"], callback["run"], token)
    return access_of_person(site_of(address), token)


def site_of(address: str) -> str:
    """Return the orchestrator's URL without the path of the API. Raises `InvalidAccess`."""
    plain = _plain(address, URL).rstrip("/")
    if _CALLBACK.fullmatch(plain):
        raise InvalidAccess(
            f"{URL} is the callback URL of one run. A server for many needs the orchestrator's address."
        )
    return plain.removesuffix(API.rstrip("/"))


def access_of_person(site: str, token: str) -> Access:
    """Return the access of a person. Raises `InvalidAccess` if the token is invalid."""
    return Access(f"{site}{API}", _check_token(token))


def access_of_run(site: str, run_id: str, token: str) -> Access:
    """Return the access of a run. Raises `InvalidAccess` if the token or the id is invalid."""
    try:
        run = UUID(run_id)
    except ValueError as error:
        raise InvalidAccess("The id of a run is a UUID.") from error
    return Access(f"{site}{API}agent-runs/{run}/", _check_token(token), of_run=True)


def _check_token(token: str, name: str = "The token") -> str:
    if not _TOKEN.fullmatch(token):
        raise InvalidAccess(f"{name} contains characters that are not allowed in a token.")
    return token


def _plain(address: str, name: str) -> str:
    """Return the address, if a token may be sent to it. Raises `InvalidAccess`."""
    try:
        parts = urlsplit(address)
        port = parts.port
    except ValueError as error:
        raise InvalidAccess(f"{name} is not an address.") from error
    if parts.scheme not in ("http", "https") or not parts.hostname or port == 0:
        raise InvalidAccess(f"{name} must be an address that begins with https:// or http://.")
    if parts.username is not None or parts.query or parts.fragment or not address.isprintable():
        raise InvalidAccess(f"{name} must be an address without a user, a query and a fragment.")
    return address
