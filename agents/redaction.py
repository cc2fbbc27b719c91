"""Shortens text from outside for error messages: printable, on one line, without our secrets."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator

from agents.contracts import AgentRequest

EXCERPT_CHARACTERS = 200
SHORTEST_SECRET = 6  # a shorter text may occur by chance, and hiding it would only garble the message


def excerpt(
    text: bytes | str, *, secrets: Iterable[str] = (), limit: int = EXCERPT_CHARACTERS, end: bool = False
) -> str:
    """Return the beginning or the end of the text, safe to display and log."""
    plain = without_secrets(text.decode("utf-8", "replace") if isinstance(text, bytes) else text, secrets)
    # Unprintable includes line breaks and the marks that reverse the direction of text.
    part = plain[-limit * 4 :] if end else plain[: limit * 4]
    printable = "".join(character if character.isprintable() else " " for character in part)
    line = " ".join(printable.split())
    if len(line) <= limit:
        return line
    return "…" + line[1 - limit :] if end else line[: limit - 1] + "…"


def excerpt_for(request: AgentRequest, text: bytes | str, *, end: bool = False) -> str:
    """Return the beginning or the end of a text from the request's agent, without the secrets that it could echo."""
    return excerpt(text, secrets=secrets_of(request), end=end)


def without_secrets(text: str, secrets: Iterable[str]) -> str:
    """Return the whole text, with these secrets replaced by `[secret]`."""
    for secret in secrets:
        if len(secret) >= SHORTEST_SECRET:
            text = text.replace(secret, "[secret]")
    return text


def secrets_of(request: AgentRequest) -> Iterator[str]:
    """Yield all secrets in a request, which its agent could echo."""
    yield request.callback.token
    yield from request.settings.signing_secrets
    auth = request.settings.auth
    yield from (str(value) for name, value in auth.items() if name not in ("type", "name"))
    if auth.get("type") == "basic":
        yield base64.b64encode(f"{auth.get('username')}:{auth.get('password', '')}".encode()).decode()
