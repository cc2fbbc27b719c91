"""Makes text from outside fit for an error message: short, printable, on one line, without our secrets."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator

from agents.contracts import AgentRequest

EXCERPT_CHARACTERS = 200
SHORTEST_SECRET = 6  # anything shorter occurs by chance, and hiding it would only garble the text


def excerpt(text: bytes | str, *, secrets: Iterable[str] = (), limit: int = EXCERPT_CHARACTERS) -> str:
    """The beginning of the text as it may be shown and logged."""
    plain = without_secrets(text.decode("utf-8", "replace") if isinstance(text, bytes) else text, secrets)
    # Unprintable includes line breaks and the marks that reverse the direction of text.
    shown = "".join(character if character.isprintable() else " " for character in plain[: limit * 4])
    shown = " ".join(shown.split())
    return shown if len(shown) <= limit else shown[: limit - 1] + "…"


def without_secrets(text: str, secrets: Iterable[str]) -> str:
    """The whole text, with these blotted out."""
    for secret in secrets:
        if len(secret) >= SHORTEST_SECRET:
            text = text.replace(secret, "[secret]")
    return text


def secrets_of(request: AgentRequest) -> Iterator[str]:
    """Everything in a request that its agent could echo and nobody else may see."""
    yield request.callback.token
    yield from request.settings.signing_secrets
    auth = request.settings.auth
    yield from (str(value) for name, value in auth.items() if name not in ("type", "name"))
    if auth.get("type") == "basic":
        yield base64.b64encode(f"{auth.get('username')}:{auth.get('password', '')}".encode()).decode()
