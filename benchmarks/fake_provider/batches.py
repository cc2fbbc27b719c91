"""The Message Batches API: create, retrieve, results, list and cancel.

`polls_until_done`: a batch is in progress until it was retrieved this number of times
`failing`           requests, by `custom_id`, that end with an error, and how many times; then they succeed
`answering`         returns the result of any other request by its body: a turn, or the type of a result without a message
`refusals`          failures of the next creations
`lost`              number of the next creations that are not answered
`held`              while it is set, creations wait for `released` before they are answered
"""

from __future__ import annotations

import json
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any

from benchmarks.fake_provider import anthropic_protocol
from benchmarks.fake_provider.script import Fault, Turn

MOST_REQUESTS = 100_000


@dataclass
class Batch:
    id: str
    requests: list[Mapping[str, Any]]
    results: list[dict[str, Any]]
    polls: int = 0
    cancelled: bool = False
    created_at: datetime = field(default_factory=lambda: datetime.now(UTC))


@dataclass
class Batches:
    polls_until_done: int = 1
    failing: dict[str, int] = field(default_factory=dict)  # custom_id -> remaining failures
    batches: dict[str, Batch] = field(default_factory=dict)
    # Returns a turn, or a result's type.
    answering: Callable[[Mapping[str, Any]], Turn | str | None] = lambda body: None
    refusals: deque[Fault] = field(default_factory=deque)
    lost: int = 0
    held: threading.Event = field(default_factory=threading.Event)
    released: threading.Event = field(default_factory=threading.Event)
    _numbers: Any = field(default_factory=lambda: count(1))
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def create(self, body: Mapping[str, Any]) -> tuple[int, dict[str, Any]]:
        requests = body.get("requests") or []
        ids = [request.get("custom_id") for request in requests]
        if not requests or len(requests) > MOST_REQUESTS or len(set(ids)) != len(ids):
            return 400, anthropic_protocol.error(
                400, "there must be at least one request, and each custom_id must be unique"
            )
        with self._lock:
            batch = Batch(
                f"msgbatch_{next(self._numbers)}",
                list(requests),
                [self._result(request) for request in requests],
            )
            self.batches[batch.id] = batch
        return 200, self._document(batch)

    def refusal(self) -> Fault | None:
        """Return the failure of the next creation, if any."""
        with self._lock:
            return self.refusals.popleft() if self.refusals else None

    def keeps_answer(self) -> bool:
        """Whether the creation of a batch is not answered. Waits while creations are held."""
        if self.held.is_set():
            self.released.wait(30)
        with self._lock:
            self.lost -= 1
            return self.lost >= 0

    def requests(self) -> list[Mapping[str, Any]]:
        """Return the requests of all batches, in the order of their arrival."""
        with self._lock:
            return [request for batch in self.batches.values() for request in batch.requests]

    def retrieve(self, batch_id: str) -> tuple[int, dict[str, Any]]:
        with self._lock:
            batch = self.batches.get(batch_id)
            if batch is None:
                return 404, anthropic_protocol.error(404, f"no batch {batch_id}")
            batch.polls += 1
            return 200, self._document(batch)

    def results(self, batch_id: str) -> tuple[int, bytes]:
        with self._lock:
            batch = self.batches.get(batch_id)
            if batch is None or not self._has_ended(batch):
                return 404, json.dumps(anthropic_protocol.error(404, "no results yet")).encode()
            return 200, b"".join(json.dumps(result).encode() + b"\n" for result in batch.results)

    def list_page(self, query: Mapping[str, list[str]]) -> dict[str, Any]:
        """Return a page of batches, newest first. The query has `limit` and `after_id`."""
        limit, (after,) = int(query.get("limit", ["20"])[0]), query.get("after_id", [""])
        with self._lock:
            names = list(reversed(self.batches))
            start = names.index(after) + 1 if after in names else 0
            data = [self._document(self.batches[name]) for name in names[start : start + limit]]
        return {
            "data": data,
            "has_more": start + limit < len(names),
            "first_id": data[0]["id"] if data else None,
            "last_id": data[-1]["id"] if data else None,
        }

    def cancel(self, batch_id: str) -> tuple[int, dict[str, Any]]:
        with self._lock:
            batch = self.batches.get(batch_id)
            if batch is None:
                return 404, anthropic_protocol.error(404, f"no batch {batch_id}")
            if not self._has_ended(batch):
                batch.cancelled = True
                batch.results = [
                    {"custom_id": each["custom_id"], "result": {"type": "canceled"}}
                    for each in batch.requests
                ]
            return 200, self._document(batch)

    def _result(self, request: Mapping[str, Any]) -> dict[str, Any]:
        name, params = request["custom_id"], request.get("params") or {}
        if self.failing.get(name, 0) > 0:
            self.failing[name] -= 1
            failure = {"type": "errored", "error": anthropic_protocol.error(500, "made to fail")}
            return {"custom_id": name, "result": failure}
        chosen = self.answering(params)
        if isinstance(chosen, str):
            return {"custom_id": name, "result": self._without_message(chosen)}
        turn = chosen or Turn(f"Done: {name}")
        return {
            "custom_id": name,
            "result": {"type": "succeeded", "message": anthropic_protocol.message(turn, params)},
        }

    def _without_message(self, kind: str) -> dict[str, Any]:
        if kind in ("expired", "canceled"):
            return {"type": kind}
        error = {"type": "error", "error": {"type": kind, "message": "made to fail"}}
        return {"type": "errored", "error": error}

    def _has_ended(self, batch: Batch) -> bool:
        return batch.cancelled or batch.polls >= self.polls_until_done

    def _document(self, batch: Batch) -> dict[str, Any]:
        has_ended = self._has_ended(batch)
        at = batch.created_at.isoformat()
        expires = (batch.created_at + timedelta(days=1)).isoformat()
        counts = {
            name: _count(batch.results, name) if has_ended else 0
            for name in ("succeeded", "errored", "canceled", "expired")
        }
        return {
            "id": batch.id, "type": "message_batch", "processing_status": "ended" if has_ended else "in_progress",
            "request_counts": {"processing": 0 if has_ended else len(batch.requests), **counts},
            "created_at": at, "expires_at": expires, "ended_at": at if has_ended else None, "archived_at": None,
            "cancel_initiated_at": at if batch.cancelled else None,
            "results_url": f"/v1/messages/batches/{batch.id}/results" if has_ended else None,
        }  # fmt: skip


def _count(results: Iterable[Mapping[str, Any]], kind: str) -> int:
    return sum(1 for result in results if result["result"]["type"] == kind)
