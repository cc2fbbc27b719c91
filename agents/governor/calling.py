"""Makes a call to a provider under its governor: acquires before the call, and always reports after it.

A short wait is slept, as long as the result is still needed. For a longer wait the run ends with an error that uses up no attempt and says
when to retry, so that its slot is free meanwhile. When Redis does not answer, no call is made.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from agents.exceptions import AgentError, AgentRateLimited, RetryableAgentError
from agents.governor import Answer, Call, Governor, Outcome, Reason, providers
from agents.governor.limits import ReportedLimits, read_limits
from agents.governor.providers import Provider
from tenants.exceptions import LimiterUnavailable

logger = logging.getLogger(__name__)

PATIENCE_SECONDS = 1.5  # to wait in a worker's slot before the first round of a dialogue
STOP_SECONDS = 1.0  # between a waiting run's checks whether its result is still needed
UNKNOWN_SECONDS = 5.0  # until a retry when Redis does not answer
HELD_SECONDS = 2.0  # until a retry when all slots are in use, because one may become free at any time
FAIR_SECONDS = 30.0  # a timeout below this is not counted as the provider's fault

PROVIDER_LIMIT, BREAKER_OPEN, UNKNOWN = "provider_limit", "breaker_open", "limiter_unavailable"


@dataclass
class ProviderFeedback:
    """What the caller learns during its call. Tokens that stay None are unknown, and their reservation stays spent."""

    headers: Mapping[str, str] = field(default_factory=dict)
    input_tokens: int | None = None
    output_tokens: int | None = None


@contextmanager
def govern_call(
    provider: Provider,
    call: Call,
    *,
    stop_reason: Callable[[], str | None] = lambda: None,
    patience_seconds: float = PATIENCE_SECONDS,
    governor: Governor | None = None,
) -> Iterator[ProviderFeedback]:
    """Govern one call. Raises `AgentRateLimited` (provider_limit, breaker_open, limiter_unavailable) if it cannot begin soon."""
    guard, feedback = governor or provider.governor, ProviderFeedback()
    providers.note_call(provider)
    _begin(provider, guard, call, stop_reason, patience_seconds)
    outcome = Outcome.OTHER
    try:
        yield feedback
        outcome = Outcome.OK
    except AgentError as error:
        outcome = _outcome_of(error, call)
        if isinstance(error, AgentRateLimited) and error.held_by is None:
            error.held_by = provider.name
        raise
    finally:
        _report(guard, call, outcome, feedback)


def _begin(
    provider: Provider, governor: Governor, call: Call, stop_reason: Callable[[], str | None], patience: float
) -> None:
    ends_at, next_check = time.monotonic() + patience, time.monotonic() + STOP_SECONDS
    while True:
        try:
            answer = governor.acquire(call)
        except LimiterUnavailable as error:
            why = "cannot be called while Redis does not answer"
            raise _rate_limited(provider, UNKNOWN, why, UNKNOWN_SECONDS, timed=False) from error
        if answer.granted:
            return
        now = time.monotonic()
        if now + answer.wait_seconds > ends_at:
            raise _explain_refusal(provider, answer)
        if now >= next_check:
            next_check = now + STOP_SECONDS
            if reason := stop_reason():
                raise AgentError(f"The run was stopped before its call: {reason}", code="run_cancelled")
        # Spread the retries of calls that wait for the same limit.
        spread = random.uniform(0.0, min(0.05, 0.1 * answer.wait_seconds))  # noqa: S311  # no secret
        time.sleep(min(STOP_SECONDS, answer.wait_seconds + spread))


def _explain_refusal(provider: Provider, answer: Answer) -> AgentRateLimited:
    wait = HELD_SECONDS if answer.reason is Reason.SLOTS else answer.wait_seconds
    if answer.reason is Reason.BREAKER:
        return _rate_limited(
            provider, BREAKER_OPEN, "failed too often in a row and is not called for now", wait
        )
    reasons = {
        Reason.SLOTS: "already has as many concurrent calls as it accepts",
        Reason.RETRY_AFTER: "asked to be called later (Retry-After)",
    }
    limit = f"has reached its limit ({answer.reason.value.replace('_', ' ')})"
    timed = answer.reason is not Reason.SLOTS
    return _rate_limited(provider, PROVIDER_LIMIT, reasons.get(answer.reason, limit), wait, timed=timed)


def _rate_limited(
    provider: Provider, code: str, why: str, seconds: float, *, timed: bool = True
) -> AgentRateLimited:
    # A little later than required, each by a different amount, so that delayed runs do not return at the same time.
    later = seconds + random.uniform(0.0, min(1.0, 0.1 * seconds + 0.05))  # noqa: S311  # no secret
    error = AgentRateLimited(f"{provider.name} {why}.", code=code, retry_after=later)
    error.held_by, error.nothing_sent, error.room_is_timed = provider.name, True, timed
    return error


def _outcome_of(error: AgentError, call: Call) -> Outcome:
    if isinstance(error, AgentRateLimited):
        return Outcome.LIMITED
    if not isinstance(error, RetryableAgentError):
        return Outcome.OTHER
    # A caller with a very short timeout must not open the breaker for all others.
    if error.error_code == "agent_timeout" and call.deadline_seconds < FAIR_SECONDS:
        return Outcome.OTHER
    return Outcome.FAULT


def _report(governor: Governor, call: Call, outcome: Outcome, feedback: ProviderFeedback) -> None:
    learned = read_limits(feedback.headers) if feedback.headers else ReportedLimits()
    try:
        governor.report(
            call,
            outcome,
            input_tokens=feedback.input_tokens,
            output_tokens=feedback.output_tokens,
            learned=learned,
        )
    except LimiterUnavailable:
        # The answer matters more than the count. The lease expires, and the reservation stays spent.
        logger.warning(
            "The call could not be reported to the governor",
            extra={"action": "governor_untold", "outcome": outcome.value},
        )
