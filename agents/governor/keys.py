"""The only place that builds the governor's keys in Redis. Braces keep a provider's keys on one node."""

from __future__ import annotations

from django.conf import settings

from agents.governor.limits import DIMENSIONS


def of(provider: str) -> list[str]:
    """The keys of a provider in the order in which the scripts want them.

    A hash with its state; a sorted set of the calls under way; a hash of what they have reserved; for each dimension a hash of what was
    used in which part of the window.
    """
    base = f"{settings.ORCHESTRATOR_REDIS_PREFIX}provider:{{{provider}}}"
    return [base, f"{base}:calls", f"{base}:reserved", *(f"{base}:used:{name}" for name in DIMENSIONS)]


def known_providers() -> str:
    """A hash of the providers that have been called."""
    return f"{settings.ORCHESTRATOR_REDIS_PREFIX}providers"
