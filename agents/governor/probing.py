"""Probes of providers that failed too often and that nobody calls: whether somebody answers there again.

After a breaker's cooldown the next call of real work decides. Where there is none, the provider would be said to fail for ever, so after a
moment somebody asks without work: one request without credentials, under the same breaker as all calls. Any answer but a fault of the
server closes the breaker; otherwise it stays open for another cooldown, a minute unless the provider's limits say otherwise.
"""

from __future__ import annotations

import logging

import redis
from django.conf import settings

from agents import outbound
from agents.exceptions import AgentError
from agents.governor import overview
from agents.governor.governor import Call, Governor, Outcome
from agents.governor.providers import KnownProvider
from tenants.exceptions import LimiterUnavailable
from tenants.identifiers import uuid7

logger = logging.getLogger(__name__)

GRACE_SECONDS = 5.0  # after a cooldown, in which work that was held back comes and decides itself
MOST_BYTES = 64 * 1024  # of an answer, which nobody reads


def probe_failing() -> int:
    """Ask each provider whose cooldown is over and that nobody has called since; how many. Any number of processes may do it at once.

    No transaction may be open. While Redis does not answer nobody is asked.
    """
    try:
        return sum(map(_probe, overview.failing()))
    except (redis.RedisError, LimiterUnavailable) as error:
        logger.info("No probes", extra={"action": "probes_left_out", "reason": type(error).__name__})
        return 0


def _probe(provider: KnownProvider) -> bool:
    governor = Governor(provider.key, provider.profile)
    standing = governor.look()
    if not provider.base_url or standing.breaker != "half_open" or standing.idle_seconds < GRACE_SECONDS:
        return False
    call = Call(id=f"probe:{uuid7()}", deadline_seconds=settings.ORCHESTRATOR_HEALTH_TIMEOUT_SECONDS)
    if not governor.ask(call).granted:
        return False  # work, or another process, is at it
    outcome = Outcome.FAULT
    try:
        outcome = _look(provider.base_url)
    finally:
        governor.tell(call, outcome, input_tokens=0, output_tokens=0)
    facts = {
        "action": "provider_probed",
        "provider": f"{provider.adapter} at {provider.place}",
        "outcome": outcome.value,
    }
    logger.info("Provider probed", extra=facts)
    return True


def _look(url: str) -> Outcome:
    try:
        answer = outbound.send(
            "GET", url, headers={"Accept": "*/*"}, deadline_seconds=settings.ORCHESTRATOR_HEALTH_TIMEOUT_SECONDS,
            max_bytes=MOST_BYTES,
        )  # fmt: skip
    except AgentError as error:
        # One that says more than anybody wants to read is there.
        return Outcome.OK if error.error_code in ("answer_too_large", "answer_encoded") else Outcome.FAULT
    return Outcome.FAULT if answer.status >= 500 else Outcome.OK
