"""A person's or program's view of the API, as small as the demonstration needs it."""

from __future__ import annotations

from typing import Any

import httpx2


class ApiRefused(Exception):
    """The API answered with a problem."""


class ApiClient:
    """Calls `/api/v1` with one token."""

    def __init__(self, base: str, token: str) -> None:
        self._http = httpx2.Client(
            base_url=f"{base}/api/v1",
            headers={"Authorization": f"Bearer {token}"},
            timeout=30.0,
            trust_env=False,
        )

    def get(self, path: str, **query: Any) -> Any:
        return self._answer(self._http.get(path, params=query))

    def post(self, path: str, body: dict[str, Any] | None = None) -> Any:
        return self._answer(self._http.post(path, json=body or {}))

    def put(self, path: str, body: dict[str, Any]) -> Any:
        return self._answer(self._http.put(path, json=body))

    def text(self, path: str) -> str:
        answer = self._http.get(path)
        answer.raise_for_status()
        return answer.text

    def close(self) -> None:
        self._http.close()

    @staticmethod
    def _answer(answer: httpx2.Response) -> Any:
        if answer.is_error:
            raise ApiRefused(
                f"{answer.request.method} {answer.request.url.path} -> {answer.status_code}: {answer.text[:1000]}"
            )
        return answer.json()
