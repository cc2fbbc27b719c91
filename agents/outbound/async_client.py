"""The asynchronous client that the library of the Agent2Agent protocol is given. A module of its own: httpx comes with that library alone.

It waits as the guarded transport waits, in the thread that runs the event loop: an event loop of one run has nothing else to do.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import cast

import httpx
import httpx2

from agents.exceptions import ConfigurationError
from agents.outbound import budget, client, urls

#: What the client raises when a connection cannot be made, or breaks. All else that it raises is an `AgentError`.
ConnectionFailed = httpx2.TransportError


def async_client_for_agent(endpoint: str, credential: Mapping[str, str]) -> httpx.AsyncClient:
    """A client for one run, to be used in a `call_budget`. `credential` holds headers for the host of the endpoint.

    An agent says itself under which address it is called. With a credential, an address at another host is refused with
    `ConfigurationError`: a card must not lead the credential astray.

    Raises what `Budget.wait` raises when the call is over. The guarded transport asks the budget before each wait, so the client's own
    timeout is never what ends a call.
    """
    return httpx.AsyncClient(
        transport=_GuardedTransport(endpoint, dict(credential)),
        trust_env=False,
        follow_redirects=False,
        timeout=budget.current().wait(),
    )


class _GuardedTransport(httpx.AsyncBaseTransport):
    def __init__(self, endpoint: str, credential: Mapping[str, str]) -> None:
        self._home = _origin(endpoint)
        self._credential = credential

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        url = str(request.url)
        if self._credential and _origin(url) != self._home:
            raise ConfigurationError(
                f"The agent's card names an address at {urls.read(url).place}, and its credentials are for {self._home[1]}. "
                "Let the role's endpoint be at the host that is called, or leave out the credentials."
            )
        # The gate has let no more calls in than there are sockets; should the pool think otherwise, it must not wait for ever.
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
        # Straight from the connection: the response's own iterators gather bytes before they hand any over.
        for piece in cast(httpx2.SyncByteStream, self._response.stream):
            yield piece

    async def aclose(self) -> None:
        self._response.close()


def _origin(url: str) -> tuple[str, str]:
    target = urls.read(url)
    return target.scheme, target.place
