"""The batch adapter: parks work that can wait until its provider's next batch, and does the rest at once.

Work is done at once if its priority is above that of batches, if its deadline is near, or if it has left a batch before. The adapter of
the same provider does it, with the same settings.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

from django.conf import settings

from agents.adapters import dialogue
from agents.adapters.anthropic import AnthropicAdapter, body_of
from agents.adapters.dialogue import ModelOptions
from agents.contracts import AgentRequest, AgentResult, Parked, RunLink
from agents.exceptions import ConfigurationError
from agents.governor.providers import in_real_time, payable_provider_of
from tenants import clock

LOWEST = 20  # the lowest priority, which is the largest number


class BatchAdapter:
    """Parks requests that can wait, and runs all others at once."""

    def run(self, request: AgentRequest, *, link: RunLink) -> AgentResult:
        """Park the request, or run the dialogue now. Raises the matching `AgentError` on failure. Parking calls nobody."""
        options, provider = ModelOptions.of(request.settings.options), payable_provider_of(request.settings)
        model = request.settings.model
        if not model:
            raise ConfigurationError(f"The role {request.agent_role} has no model.")
        wanted_by = min(request.deadline, request.wanted_by or request.deadline)
        leave_at = wanted_by - timedelta(seconds=settings.ORCHESTRATOR_BATCH_MARGIN_SECONDS)
        if request.at_once or request.priority < _batch_priority(request) or leave_at <= clock.now():
            # A run that may wait a day for its batch must not hold a worker for a day.
            seconds = min(request.timeout_seconds, settings.ORCHESTRATOR_DEFAULT_TIMEOUT_SECONDS)
            chosen = replace(request, settings=in_real_time(request.settings), timeout_seconds=seconds)
            return AnthropicAdapter().run(chosen, link=link)
        messages = [{"role": "user", "content": request.prompt}]
        body = body_of(request, options, system=dialogue.system_of(request, options), messages=messages)
        return Parked(provider.key, model, body, leave_at)


def _batch_priority(request: AgentRequest) -> int:
    priority: Any = request.settings.options.get("batch_priority", settings.ORCHESTRATOR_BATCH_PRIORITY)
    if isinstance(priority, bool) or not isinstance(priority, int) or not 1 <= priority <= LOWEST:
        raise ConfigurationError(f"The option batch_priority must be a whole number from 1 to {LOWEST}.")
    return priority
