"""One POST to a receiver of alerts, and what its answer means."""

from __future__ import annotations

from collections.abc import Mapping

from activities.alerts.problems import DeliveryProblem, NotDelivered, Refused, Unclear
from activities.alerts.targets import Target
from agents import outbound
from agents.exceptions import AgentError
from agents.excerpts import excerpt
from agents.outbound import OutboundResponse
from agents.retry_after import seconds_from

SECONDS = 10.0  # from the name service to the last byte; a receiver of alerts has nothing to think about
MOST_BYTES = 64 * 1024  # of an answer that nobody needs

_RETRYABLE = frozenset({408, 425, 429})
#: The answer was a success that only its length or its encoding kept from being read.
_ANSWERED = frozenset({"answer_too_large", "answer_encoded"})


def post(target: Target, body: bytes, headers: Mapping[str, str] | None = None) -> None:
    """Returns when the receiver has taken it. Raises the `DeliveryProblem` that the answer, or its absence, stands for."""
    given = {
        "Content-Type": "application/json",
        # A reused connection may be closed under our hands, and then nobody knows whether the message arrived.
        "Connection": "close",
        **(headers or {}),
    }
    try:
        response = outbound.send(
            "POST",
            target.address,
            headers=given,
            body=body,
            deadline_seconds=SECONDS,
            max_bytes=MOST_BYTES,
        )
    except AgentError as error:
        if error.error_code in _ANSWERED:
            return
        raise _meaning_of(error) from error
    if not 200 <= response.status < 300:
        raise _refusal(response, target)


def _meaning_of(error: AgentError) -> DeliveryProblem:
    if not error.retryable:
        return Refused(str(error))
    return NotDelivered(str(error)) if error.nothing_sent else Unclear(str(error))


def _refusal(response: OutboundResponse, target: Target) -> DeliveryProblem:
    shown = excerpt(response.body, secrets=(target.address, *target.secrets))
    message = f"The receiver answered with status {response.status}" + (f": {shown}" if shown else ".")
    if response.status in _RETRYABLE or response.status >= 500:
        return NotDelivered(message, retry_after=seconds_from(response.headers.get("retry-after")))
    return Refused(message)
