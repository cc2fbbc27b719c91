"""The clients that other people's libraries are given, so that their calls go through the guard like all others.

Only the headers that the protocols need are sent, and the credential is ours: what a library finds in this machine's environment (keys,
organisations, custom headers) and tells about it never leaves. An answer that is compressed, which is never asked for, is refused.
"""

from __future__ import annotations

from collections.abc import Mapping

import httpx2

from agents.exceptions import PermanentAgentError
from agents.outbound import client

_NEEDED = frozenset(
    {
        *("accept", "connection", "content-length", "content-type", "host"),
        *("a2a-extensions", "a2a-version", "anthropic-beta", "anthropic-version"),
    }
)


def client_for_vendor(credential: Mapping[str, str]) -> httpx2.Client:
    """A client for one run. `credential` holds the headers to be sent as they are. Use it in a `call_budget`, and let it go unclosed."""
    return httpx2.Client(
        transport=_VendorTransport(dict(credential)), trust_env=False, follow_redirects=False, timeout=None
    )


class _VendorTransport(httpx2.BaseTransport):
    def __init__(self, credential: Mapping[str, str]) -> None:
        self._credential = credential

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        return send_for_library(request, self._credential)


def send_for_library(request: httpx2.Request, credential: Mapping[str, str]) -> httpx2.Response:
    """Send what a library asks for; its answer, to be closed. Raises `PermanentAgentError` for one that is compressed."""
    kept = {name: value for name, value in request.headers.items() if name.lower() in _NEEDED}
    own = {"User-Agent": "orchestrator", "Accept-Encoding": "identity"}
    # Another request: the library looks at its own again when the answer is there.
    passed = httpx2.Request(
        request.method,
        request.url,
        headers={**kept, **own, **credential},
        stream=request.stream,
        extensions=request.extensions,
    )
    response = client.guarded_transport().handle_request(passed)
    if response.headers.get("content-encoding", "identity").strip().lower() not in ("", "identity"):
        response.close()
        raise PermanentAgentError("The answer is compressed, which was not asked for.", code="answer_encoded")
    return response
