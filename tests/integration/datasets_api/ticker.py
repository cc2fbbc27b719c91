"""A dataset over the API, and the errors that a response names."""

from __future__ import annotations

from typing import Any

from tests.answers import problem

DATASETS = "/api/v1/datasets/"
TICKER = f"{DATASETS}ticker/"
ROWS = f"{TICKER}rows/"
FIELDS = {"id": "string", "enabled": "boolean", "price": "number", "createdAt": "datetime"}
AAPL = {"id": "AAPL", "enabled": True, "price": 1.5, "createdAt": "2024-01-01"}


def make_dataset(client: Any, **members: Any) -> dict[str, Any]:
    answer = client.post(DATASETS, {"name": "ticker", "fields": FIELDS, **members})
    assert answer.status_code == 201, answer.content
    return answer.json()


def faults(response: Any, code: str = "invalid_rows") -> dict[str, str]:
    return {fault["path"]: fault["message"] for fault in problem(response, 400, code)["errors"]}
