"""The asynchronous HTTP client for the library of the Agent2Agent protocol. A separate module, because only that library needs httpx.

It blocks the thread of the event loop like the guarded transport, because the event loop of one run has nothing else to do.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import cast

import httpx
import httpx2

from agents.exceptions import ConfigurationError
from agents.outbound import budget, client, urls

#: Raised when a connection cannot be made, or breaks. All other errors of the client are `AgentError`s.
ConnectionFailed = httpx2.TransportError


def async_client_for_agent(endpoint: str, credential: Mapping[str, str]) -> httpx.AsyncClient:
    """Return a client for one run, to be used in a `call_budget`. `credential` are headers for the host of the endpoint.

    An agent's card names the address to call. With a credential, an address at another host is refused with
    `ConfigurationError`, because a card must not redirect the credential.

    Raises what `Budget.wait` raises when the call is over. The guarded transport checks the budget before each wait, so the client's own
    timeout never ends a call.
    """
    return httpx.AsyncClient(
        transport=_GuardedTransport(endpoint, dict(credential)),
        trust_env=False,
        follow_redirects=False,
        timeout=budget.current().wait(),
    )


class _GuardedTransport(httpx.AsyncBaseTransport):
    def __init__(self, endpoint: str, credential: Mapping[str, str]) -> None:
        self._endpoint_origin = _origin(endpoint)
        self._credential = credential

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        url = str(request.url)
        if self._credential and _origin(url) != self._endpoint_origin:
            raise ConfigurationError(
                f"The agent's card names an address at {urls.read(url).place}, and its credentials are for {self._endpoint_origin[1]}. "
                "Set the role's endpoint to the host that is called, or remove the credentials."
            )
        # The gate admits no more calls than there are sockets. If the pool nevertheless has none, it must not wait for ever.
        patience = {"timeout": {"pool": budget.current().wait()}}
        plain_request = httpx2.Request(
            request.method,
            url,
            headers=request.headers.multi_items(),
            content=await request.aread(),
            extensions=patience,
        )
        response = client.send_for_library(plain_request, self._credential)
        return httpx.Response(
            response.status_code,
            headers=response.headers.multi_items(),
            stream=_Body(response),
            request=request,
        )


class _Body(httpx.AsyncByteStream):
    def __init__(self, response: httpx2.Response) -> None:
        self._response = response

    async def __aiter__(self) -> AsyncIterator[bytes]:
        # Read directly from the connection, because the response's own iterators buffer bytes.
        for piece in cast(httpx2.SyncByteStream, self._response.stream):
            yield piece

    async def aclose(self) -> None:
        self._response.close()


def _origin(url: str) -> tuple[str, str]:
    target = urls.read(url)
    return target.scheme, target.place
