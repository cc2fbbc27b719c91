"""A server of the test's own, inside the process: a list of answers, and what was asked."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import httpx

from orchestrator_client import AsyncClient, Client, RetryPolicy

Answer = httpx.Response | Exception | Callable[[httpx.Request], httpx.Response]
URL = "http://orchestrator.test"
TOKEN = "made-up-token"


def said(status: int, body: Any = None, **headers: str) -> httpx.Response:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return httpx.Response(status, json=body, headers=named)


def problem(status: int, code: str, detail: str = "No.", **members: Any) -> httpx.Response:
    body = {"type": "about:blank", "title": "No", "status": status, "detail": detail, "code": code, **members}
    return httpx.Response(status, json=body, headers={"content-type": "application/problem+json"})


class Answering:
    """Gives the answers in order, the last one again and again, and remembers the requests and the pauses."""

    def __init__(self, *answers: Answer) -> None:
        self.answers = list(answers)
        self.requests: list[httpx.Request] = []
        self.pauses: list[float] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        if not isinstance(answer, httpx.Response):
            return answer(request)
        return httpx.Response(answer.status_code, content=answer.content, headers=answer.headers)

    def client(self, **options: Any) -> Client:
        options.setdefault("retries", RetryPolicy(chance=lambda: 0.0))
        made = Client(URL, TOKEN, transport=httpx.MockTransport(self), **options)
        made._sender.sleep = self.pauses.append
        return made

    def async_client(self, **options: Any) -> AsyncClient:
        options.setdefault("retries", RetryPolicy(chance=lambda: 0.0))
        made = AsyncClient(URL, TOKEN, transport=httpx.MockTransport(self), **options)
        made._sender.sleep = self._pause
        return made

    async def _pause(self, seconds: float) -> None:
        self.pauses.append(seconds)

    def bodies(self) -> Sequence[Any]:
        return [json.loads(request.content) for request in self.requests]
