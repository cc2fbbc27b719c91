"""The one way by which an agent's call reaches a tool, whether it came over HTTP or from an adapter in a worker.

What an agent says is untrusted: its arguments are read by the letter, and what they name must be its tenant's. Only then is it called.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from activities import reports, tool_rate, tools
from activities.bodies.tools import arguments_of
from activities.exceptions import ActivityError, QuotaExceeded, RunSuperseded, ToolRefused
from activities.run_tokens import RunToken
from tenants.context import tenant_scope
from tenants.models import Channel

logger = logging.getLogger(__name__)


def call(run: RunToken, tool: str, body: Any, *, key: str = "") -> tools.Answer:
    """One call. `key` tells two calls with equal bodies apart.

    Raises REST framework's `ValidationError` naming every fault of the body, `reports.RunOver`, and what `tools.call` raises.
    """
    try:
        return _called(run, tool, body, key)
    except (ToolRefused, QuotaExceeded) as refusal:
        # Honest agents seldom meet these. Many of them from one role are how a hijacked one looks.
        logger.warning(
            "Tool refused",
            extra={"action": "tool_refused", "tool": tool, "code": refusal.code, "run": str(run.run_id), **_quota_of(refusal)},
        )  # fmt: skip
        raise


def _quota_of(refusal: ActivityError) -> dict[str, Any]:
    """Which quota it was, if it was one."""
    return dict(getattr(refusal, "problem_members", {}))


def _called(run: RunToken, tool: str, body: Any, key: str) -> tools.Answer:
    tool_rate.refuse_hammering(run.run_id)
    arguments = arguments_of(tool, body)
    with tenant_scope(run.tenant_id):
        answer = tools.answered_before(run, tool, arguments, key=key)
    if answer is not None:
        return answer
    _refuse_unknown(run, arguments)
    try:
        return tools.call(run, tool, arguments, key=key)
    except RunSuperseded as error:
        raise reports.run_over(run) from error


def _refuse_unknown(run: RunToken, arguments: Mapping[str, Any]) -> None:
    """Look at what the arguments name. Raises `ToolRefused` for what is not the tenant's."""
    with tenant_scope(run.tenant_id):
        channel = arguments.get("channel_id")
        if channel and not Channel.objects.for_tenant(run.tenant_id).filter(pk=channel).exists():
            raise ToolRefused(f"There is no channel {channel}.")
