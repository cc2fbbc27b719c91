"""Calls of the HTTP API: JSON in, JSON out, and one exception for everything that does not go well.

Redirects are not followed, so a token goes to the address that was configured and nowhere else.

Where to ask, and as whom (`Access`), is read from the environment, or put together from what a request brings:

ORCHESTRATOR_CALLBACK_URL, ORCHESTRATOR_CALLBACK_TOKEN    of a run, as command-line agents find them in their environment
ORCHESTRATOR_URL, ORCHESTRATOR_TOKEN                      of a person or a program; a callback URL makes them those of a run
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

SECONDS = 60.0  # for one call; the API itself gives up on its servers within ten
MOST_BYTES = 16 * 1024 * 1024  # of an answer: three times the largest output that the API takes, with room
LONGEST_DETAIL = 2_000

Answer = dict[str, Any]


class Refusal(Exception):
    """The API refused, or could not be asked. `str()` is for the caller of the tool; it holds no secret."""

    def __init__(
        self, code: str, detail: str, *, status: int | None = None, problem: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__(detail)
        self.code, self.status, self.detail = code, status, detail[:LONGEST_DETAIL]
        self.problem = dict(problem or {})

    @property
    def faults(self) -> list[tuple[str, str]]:
        """What was wrong with the request: path ("" is all of it) and message."""
        errors = self.problem.get("errors")
        rows = [each for each in errors if isinstance(each, dict)] if isinstance(errors, list) else []
        return [(str(each.get("path", "")), str(each.get("message", ""))) for each in rows]

    def __str__(self) -> str:
        status = f"{self.status} " if self.status else ""
        lines = [f"Refused ({status}{self.code}): {self.detail}"]
        lines += [f"- {path}: {message}" if path else f"- {message}" for path, message in self.faults]
        for name in ("required_role", "required_scope", "quota", "decision", "decided_by", "decided_at"):
            if self.problem.get(name):
                lines.append(f"{name.replace('_', ' ')}: {self.problem[name]}")
        if self.problem.get("retry_after"):
            lines.append(f"Try again after {self.problem['retry_after']} s.")
        if self.problem.get("stop") is True:
            lines.append("This run is over. Stop working on it: nothing that you send counts any more.")
        if self.problem.get("request_id"):
            lines.append(f"request id: {self.problem['request_id']}")
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class Api:
    """The API as one caller sees it. Paths are relative to the root of `access`."""

    client: httpx2.AsyncClient
    access: Access

    async def get(self, path: str, **query: Any) -> Answer:
        """Raises `Refusal`. What is None is left out of the query."""
        return await self._call("GET", path, query=query)

    async def post(
        self, path: str, body: Mapping[str, Any] | None = None, *, key: str | None = None
    ) -> Answer:
        """Raises `Refusal`. With a `key` the request takes effect once, however often it is repeated."""
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
                + ("Whether the request was carried out is not known." if method == "POST" else ""),
            ) from error
        return _answer(response, text)


def client() -> httpx2.AsyncClient:
    """What calls are made with; the caller closes it."""
    return httpx2.AsyncClient(
        verify=_trust(),
        follow_redirects=False,
        timeout=SECONDS,
        headers={"User-Agent": "orchestrator-mcp"},
    )


@cache
def _trust() -> ssl.SSLContext:
    """Whose certificates are believed: reading those of the machine takes 20 ms, so it is done once."""
    return httpx2.create_ssl_context()


def cursor_in(answer: Mapping[str, Any]) -> str | None:
    """The cursor of the next page of a list, out of the address that the API names."""
    following = answer.get("next")
    found = parse_qs(urlsplit(following).query).get("cursor") if isinstance(following, str) else None
    return found[0] if found else None


def _encode_body(body: Mapping[str, Any]) -> bytes:
    try:
        return json.dumps(body, allow_nan=False).encode()
    except (ValueError, RecursionError) as error:
        raise Refusal("invalid_arguments", "The arguments hold numbers that JSON does not have.") from error


def _query(parameters: Mapping[str, Any]) -> dict[str, str]:
    texts = {True: "true", False: "false"}
    return {
        name: texts[value] if isinstance(value, bool) else str(value)
        for name, value in parameters.items()
        if value is not None
    }


async def _read(response: httpx2.Response) -> bytes:
    found = bytearray()
    async for chunk in response.aiter_bytes():
        found += chunk
        if len(found) > MOST_BYTES:
            raise Refusal("too_large", "The answer of the orchestrator is too large.")
    return bytes(found)


def _answer(response: httpx2.Response, text: bytes) -> Answer:
    try:
        body = json.loads(text) if text else {}
    except (ValueError, RecursionError):
        body = None
    if response.is_success and isinstance(body, dict):
        return body
    if not isinstance(body, dict) or "code" not in body:
        # Not our API, or something in front of it. What it says may be anything, so it is not passed on.
        detail = (
            f"The address answers with status {response.status_code} and not as the orchestrator's API does."
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
# What a header may hold: a token with anything else is none of ours, and must not become a second header.
_TOKEN = re.compile(r"[\x21-\x7e]{1,8192}")


class Unusable(ValueError):
    """The environment or a request does not say whom to ask, or as whom. The text names what is missing, and no secret."""


@dataclass(frozen=True, slots=True)
class Access:
    """`root` ends with a slash: the API's address, or that of the callbacks of the one run that the token is for."""

    root: str
    token: str = field(repr=False)
    of_run: bool = False


def access_from_environment(environment: Mapping[str, str]) -> Access:
    """Raises `Unusable`. Where there are both, a run's token goes first: it opens less."""
    if environment.get(CALLBACK_URL) and environment.get(CALLBACK_TOKEN):
        address, token, name = environment[CALLBACK_URL], environment[CALLBACK_TOKEN], CALLBACK_TOKEN
        if not _CALLBACK.fullmatch(_plain(address, CALLBACK_URL)):
            raise Unusable(
                f"{CALLBACK_URL} is not the callback URL of a run, such as https://host/api/v1/agent-runs/<run id>/."
            )
    else:
        address, token, name = environment.get(URL, ""), environment.get(TOKEN, ""), TOKEN
        missing = [needed for needed, value in ((URL, address), (TOKEN, token)) if not value]
        if missing:
            raise Unusable(
                f"{' and '.join(missing)} must be set: the address of the orchestrator, such as https://host, "
                f"and a personal token. For an agent, {CALLBACK_URL} and {CALLBACK_TOKEN} of its run."
            )
    if not _TOKEN.fullmatch(token):
        raise Unusable(f"{name} holds characters that no token has.")
    found = _CALLBACK.fullmatch(_plain(address, URL))
    if found:
        return access_of_run(found["site"], found["run"], token)
    return access_of_person(site_of(address), token)


def site_of(address: str) -> str:
    """The orchestrator's address without the path of the API. Raises `Unusable`."""
    plain = _plain(address, URL).rstrip("/")
    if _CALLBACK.fullmatch(plain):
        raise Unusable(
            f"{URL} is the callback URL of one run. A server for many needs the orchestrator's address."
        )
    return plain.removesuffix(API.rstrip("/"))


def access_of_person(site: str, token: str) -> Access:
    """Raises `Unusable` for what cannot be a token."""
    return Access(f"{site}{API}", _check_token(token))


def access_of_run(site: str, run_id: str, token: str) -> Access:
    """Raises `Unusable` for what cannot be a token or the id of a run."""
    try:
        run = UUID(run_id)
    except ValueError as error:
        raise Unusable("The id of a run is a UUID.") from error
    return Access(f"{site}{API}agent-runs/{run}/", _check_token(token), of_run=True)


def _check_token(token: str) -> str:
    if not _TOKEN.fullmatch(token):
        raise Unusable("The token holds characters that no token has.")
    return token


def _plain(address: str, name: str) -> str:
    """The address, if it is one to which a token may be sent. Raises `Unusable`."""
    try:
        parts = urlsplit(address)
        port = parts.port
    except ValueError as error:
        raise Unusable(f"{name} is not an address.") from error
    if parts.scheme not in ("http", "https") or not parts.hostname or port == 0:
        raise Unusable(f"{name} must be an address that begins with https:// or http://.")
    if parts.username is not None or parts.query or parts.fragment or not address.isprintable():
        raise Unusable(f"{name} must be an address without a user, a query and a fragment.")
    return address
