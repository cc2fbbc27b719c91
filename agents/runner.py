"""Runs one request through its adapter. Guarantees a well-formed result or an `AgentError`.

`run_agent` raises nothing else, so the engine can decide about retries by the class of the error alone. If
the process dies meanwhile, recovery notices it and the engine calls again with the same
idempotency key.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
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
    """Run the agent once. Must run outside any database transaction, because it may take minutes.

    Adapters that wait observe `request.timeout_seconds` themselves. A function cannot be stopped. If it takes
    longer, its result still counts, because a retry would take as long; the overrun is logged.
    """
    started = time.monotonic()
    try:
        with tracing.part(
            f"agent {request.agent_role}",
            tracing.CLIENT,
            **{"orchestrator.adapter": request.settings.adapter},
        ):
            result = adapters.get(request.settings.adapter).run(request, link=_TolerantLink(link, request))
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
            "Agent exceeded its timeout",
            extra=_facts("agent_overran", request) | {"seconds": round(seconds, 3)},
        )
    return result


@dataclass(frozen=True, slots=True)
class _TolerantLink:
    """A link that ignores errors of the engine, because a call must not fail when the database does.

    The errors of tools are not ignored, because it must be known whether a tool has done something. They end the call.

    An adapter or a function may call it within an event loop of its own.
    """

    link: RunLink
    request: AgentRequest

    def stop_reason(self) -> str | None:
        return self._tolerate_errors("stop_reason", self.link.stop_reason)

    def saw_session(self, session_id: str) -> None:
        self._tolerate_errors("saw_session", lambda: self.link.saw_session(session_id))

    def count_usage(self, usage: Usage) -> str | None:
        return self._tolerate_errors("spent", lambda: self.link.count_usage(usage))

    def note_progress(self, progress: Mapping[str, Any]) -> None:
        self._tolerate_errors("progressed", lambda: self.link.note_progress(progress))

    def log(self, kind: str, text: str) -> None:
        """Log the text without the request's secrets, which the agent may echo."""
        redacted = redaction.without_secrets(text, redaction.secrets_of(self.request))
        self._tolerate_errors("log", lambda: self.link.log(kind, redacted))

    def call_tool(self, call: ToolCall) -> ToolAnswer:
        try:
            with _outside_event_loop():
                return self.link.call_tool(call)
        except Exception as error:
            if outages.is_away(error):
                raise ServerAway("A server that the tool needs failed during the call.") from error
            raise

    def _tolerate_errors(self, about: str, call: Callable[[], Answer]) -> Answer | None:
        try:
            with _outside_event_loop():
                return call()
        except SoftTimeLimitExceeded:
            raise  # Celery's time limit for this thread, not an error of the link
        except Exception as error:  # noqa: BLE001 - whatever the error is, it says nothing about the agent
            facts = _facts("link_failed", self.request) | {"about": about, "error": type(error).__name__}
            logger.warning("A run could not reach the engine", extra=facts)
            return None


@contextmanager
def _outside_event_loop() -> Iterator[None]:
    """Hide the event loop of this thread from Django, which refuses to use a connection while one runs.

    Blocking the loop is harmless: it belongs to one run, and the connection to this thread.
    """
    loop = asyncio._get_running_loop()
    asyncio._set_running_loop(None)
    try:
        yield
    finally:
        asyncio._set_running_loop(loop)


def _crash(request: AgentRequest, error: Exception) -> RetryableAgentError:
    # Retryable, because most unexpected errors are temporary, and attempts are limited anyway.
    excerpt = redaction.excerpt_for(request, f"{type(error).__name__}: {error}")
    # The exception's message is not logged, because it may quote the prompt or a key.
    logger.error("Agent crashed", extra=_facts("agent_crashed", request) | {"error": type(error).__name__})
    return RetryableAgentError(f"The agent crashed with {excerpt}", code="agent_crashed")


def _facts(action: str, request: AgentRequest) -> dict[str, str]:
    return {
        "action": action,
        "activity": str(request.activity_id),
        "run": str(request.run_id),
        "tenant": str(request.tenant_id),
        "role": request.agent_role,
    }
