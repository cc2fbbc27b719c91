"""The names that expressions of these tests are evaluated with."""

from __future__ import annotations

from typing import Any

import pytest

from pipelines.expressions import ExpressionError, evaluate

NAMES: dict[str, Any] = {
    "params": {
        "market": "se",
        "threshold": 5,
        "half": 0.5,
        "flag": True,
        "nothing": None,
        "first-name": "Ann",
        "tags": ["a", "b"],
        "scores": [3, 1, 2],
        "mixed": [1, "a"],
    },
    "steps": {
        "research": {
            "data": {"score": 7, "sections": [{"title": "One"}, {"title": "Two"}], "ready": True},
            "content": "A draft of the text",
            "status": "done",
        },
        "sign-off": {"data": {"ok": False}, "content": None, "status": "done"},
        "optional": {"data": None, "content": None, "status": "skipped"},
    },
    "item": {"title": "One", "rank": 2},
}


def refusal(text: str, names: dict[str, Any] = NAMES) -> str:
    with pytest.raises(ExpressionError) as caught:
        evaluate(text, names)
    return str(caught.value)
