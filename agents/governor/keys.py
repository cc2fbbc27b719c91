"""Builds the governor's keys in Redis; no other module does. Braces keep a provider's keys on one node."""

from __future__ import annotations

from django.conf import settings

from agents.governor.limits import DIMENSIONS


def of_provider(provider: str) -> list[str]:
    """Return the keys of a provider in the order in which the scripts expect them.

    A hash with its state; a sorted set of the running calls; a hash with their reservations; for each dimension a hash with the usage
    in each part of the window.
    """
    base = f"{settings.ORCHESTRATOR_REDIS_PREFIX}provider:{{{provider}}}"
    return [base, f"{base}:calls", f"{base}:reserved", *(f"{base}:used:{name}" for name in DIMENSIONS)]


def known_providers() -> str:
    """Return the key of a hash of the providers that have been called."""
    return f"{settings.ORCHESTRATOR_REDIS_PREFIX}providers"
