"""Runs one request through its adapter and vouches for what comes out: a well-formed result or an
`AgentError`.

Nothing else leaves `run_agent`, so the engine can decide about retries by the class of the error alone. The
process may die at any moment in between; recovery notices and the engine calls again with the same
idempotency key.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from billiard.exceptions import SoftTimeLimitExceeded

from agents import adapters, redaction, response_parser
from agents.adapters import UNLINKED
from agents.contracts import AgentRequest, AgentResult, RunLink, ToolAnswer, ToolCall, Usage
from agents.exceptions import AgentError, RetryableAgentError, ServerAway
from tenants import outages, tracing

logger = logging.getLogger(__name__)

Answer = TypeVar("Answer")


def run_agent(request: AgentRequest, *, link: RunLink = UNLINKED) -> AgentResult:
    """Run the agent once. Must be called outside any database transaction: it may take minutes.

    Adapters that wait keep `request.timeout_seconds` themselves. A function cannot be stopped; when one takes
    longer, its result still counts, because running it again would take as long, and the overrun is logged.
    """
    started = time.monotonic()
    try:
        with tracing.part(
            f"agent {request.agent_role}",
            tracing.CLIENT,
            **{"orchestrator.adapter": request.settings.adapter},
        ):
            result = adapters.get(request.settings.adapter).run(request, link=_PatientLink(link, request))
            response_parser.require_well_formed(result)
    except AgentError:
        raise
    except (TimeoutError, SoftTimeLimitExceeded) as error:
        message = f"The agent did not finish within {request.timeout_seconds:g} s."
        raise RetryableAgentError(message, code="agent_timeout") from error
    except Exception as error:
        raise _crash(request, error) from error
    if (seconds := time.monotonic() - started) > request.timeout_seconds:
        logger.warning(
            "Agent overran its time", extra=_facts("agent_overran", request) | {"seconds": round(seconds, 3)}
        )
    return result


@dataclass(frozen=True, slots=True)
class _PatientLink:
    """The same link, which says "go on" while it cannot be asked: a call must not die with the database.

    A tool is another matter: whether it has done something must be known, so its error ends the call, and the engine decides.
    """

    link: RunLink
    request: AgentRequest

    def stop_reason(self) -> str | None:
        return self._ask("stop_reason", self.link.stop_reason)

    def saw_session(self, session_id: str) -> None:
        self._ask("saw_session", lambda: self.link.saw_session(session_id))

    def count_usage(self, usage: Usage) -> str | None:
        return self._ask("spent", lambda: self.link.count_usage(usage))

    def note_progress(self, progress: Mapping[str, Any]) -> None:
        self._ask("progressed", lambda: self.link.note_progress(progress))

    def log(self, kind: str, text: str) -> None:
        """Without what nobody may see, whatever the agent echoes."""
        shown = redaction.without_secrets(text, redaction.secrets_of(self.request))
        self._ask("log", lambda: self.link.log(kind, shown))

    def call_tool(self, call: ToolCall) -> ToolAnswer:
        try:
            return self.link.call_tool(call)
        except Exception as error:
            if outages.is_away(error):
                raise ServerAway("A server that the tool needs went away during the call.") from error
            raise

    def _ask(self, about: str, ask: Callable[[], Answer]) -> Answer | None:
        try:
            return ask()
        except SoftTimeLimitExceeded:
            raise  # Celery's word to this thread, which only happened to be asking
        except Exception as error:  # noqa: BLE001 - whatever it is, it says nothing about the agent
            facts = _facts("link_failed", self.request) | {"about": about, "error": type(error).__name__}
            logger.warning("The engine could not be asked during a run", extra=facts)
            return None


def _crash(request: AgentRequest, error: Exception) -> RetryableAgentError:
    # Retryable, since most surprises are passing ones, and the attempts are counted anyway.
    shown = redaction.excerpt(f"{type(error).__name__}: {error}", secrets=redaction.secrets_of(request))
    # The traceback is not logged with its message: an exception's text may quote the prompt or a key.
    logger.error("Agent crashed", extra=_facts("agent_crashed", request) | {"error": type(error).__name__})
    return RetryableAgentError(f"The agent crashed with {shown}", code="agent_crashed")


def _facts(action: str, request: AgentRequest) -> dict[str, str]:
    return {
        "action": action,
        "activity": str(request.activity_id),
        "run": str(request.run_id),
        "tenant": str(request.tenant_id),
        "role": request.agent_role,
    }
