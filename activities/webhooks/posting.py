"""One attempt: the event is posted, and the answer, or its absence, has a meaning."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from django.conf import settings

from agents import outbound
from agents.exceptions import AgentError
from agents.excerpts import excerpt
from agents.retry_after import seconds_from
from agents.webhook_signing import signed_headers
from tenants.api.renderers import dumps

MOST_BYTES = 64 * 1024  # of an answer that nobody needs
GONE = 410

#: The answer was a success that only its length or its encoding kept from being read.
_ANSWERED = frozenset({"answer_too_large", "answer_encoded"})


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of one attempt. Without a `status` there was no answer; `retry_after` is in seconds, as the receiver asked."""

    taken: bool
    status: int | None
    milliseconds: int
    error: str = ""
    retry_after: float | None = None

    @property
    def is_gone(self) -> bool:
        return self.status == GONE


def post(url: str, content: Mapping[str, Any], *, message_id: str, secrets: Sequence[str]) -> Outcome:
    """Post it once. Never raises for what the receiver or the network does; redirects are not followed. Not inside a transaction."""
    body = dumps(content)
    headers = {
        "Content-Type": "application/json",
        "User-Agent": "orchestrator-webhooks/1",
        # A reused connection may be closed under our hands, which would cost an attempt.
        "Connection": "close",
        **signed_headers(message_id=message_id, body=body, secrets=secrets),
    }
    began = time.monotonic()
    try:
        answer = outbound.send(
            "POST",
            url,
            headers=headers,
            body=body,
            deadline_seconds=settings.ORCHESTRATOR_WEBHOOK_TIMEOUT_SECONDS,
            max_bytes=MOST_BYTES,
        )
    except AgentError as error:
        taken = error.error_code in _ANSWERED
        return Outcome(taken, None, _since(began), "" if taken else excerpt(str(error), secrets=secrets))
    if 200 <= answer.status < 300:
        return Outcome(True, answer.status, _since(began))
    said = excerpt(answer.body, secrets=(url, *secrets))
    return Outcome(
        False,
        answer.status,
        _since(began),
        f"The receiver answered with status {answer.status}" + (f": {said}" if said else "."),
        seconds_from(answer.headers.get("retry-after")),
    )


def _since(began: float) -> int:
    return round((time.monotonic() - began) * 1000)
