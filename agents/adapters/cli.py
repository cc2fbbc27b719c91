"""The cli adapter: an agent that is a program of this machine, run by the worker as a process of its own.

Operators alone say what is run (`options` of the registry, see agents/command_line/options.py). The session is kept at first sight, usage
as it is told, the transcript as it is printed, and what was used of memory and processor while it goes on. However the call ends, the
program and all that it has started are gone by then; if the worker itself is killed, the kernel and `sweep` see to that.

    exit 0 with a result                    the output of the run
    `session_invalid` matches the failure   the conversation is unknown: the run starts again without one
    `rate_limited` matches the failure      later, without losing an attempt
    a listed exit code, a hopeless error    permanent
    any other exit code, any signal         tried again
"""

from __future__ import annotations

import logging
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from agents import redaction
from agents.command_line import invocation, options, output, processes, transcripts, users, workspaces
from agents.command_line.options import Options
from agents.command_line.output import AgentOutput
from agents.command_line.processes import Command, ProcessEnd, Resources, Watch
from agents.command_line.users import OwnUser
from agents.command_line.workspaces import Worktree
from agents.contracts import AgentRequest, AgentResult, Completed, RunLink
from agents.exceptions import (
    AgentError,
    AgentRateLimited,
    ConfigurationError,
    PermanentAgentError,
    RetryableAgentError,
    SessionInvalid,
)

logger = logging.getLogger(__name__)

TAIL_BYTES = 8_192  # of the standard error, for the message of a failure
MAX_TURNS = "max_turns"  # the code of an agent that was not done after as many answers as it might give
REPORT_SECONDS = 5.0  # between two notes of what the run uses


class CliAdapter:
    """Runs programs."""

    def run(self, request: AgentRequest, *, link: RunLink) -> AgentResult:
        """Run the program once. Raises the `AgentError` that its end stands for."""
        chosen = options.read(request.settings.options)
        invocation.program_of(chosen)
        with (
            _user_of(request, chosen) as user,
            workspaces.keep_workspace(request.run_id, user) as trace,
            workspaces.check_out(request, chosen, trace) as tree,
        ):
            command = invocation.command_of(
                request, chosen, files=trace.files, work=tree.path if tree else trace.work,
                repository=str(tree.repository) if tree else None, user=trace.user,
            )  # fmt: skip
            try:
                result = _Call(request, chosen, link).make(command)
            except AgentError:
                _keep_work(tree)
                raise
            return _with_work(result, tree)


@contextmanager
def _user_of(request: AgentRequest, chosen: Options) -> Iterator[OwnUser | None]:
    """Whom the program runs as; None: the worker's own user, where somebody has said that it may."""
    if not users.needs_own_user():
        yield None
        return
    if chosen.home == "worker":
        raise options.invalid("home", "cannot be the worker's: each run has a user of its own here")
    with users.own(invocation.home_of(request)) as user:
        yield user


@dataclass(slots=True)
class _Call:
    """One call of the program."""

    request: AgentRequest
    chosen: Options
    link: RunLink
    tail: bytearray = field(default_factory=bytearray)
    stop: str | None = None
    reported: float = field(default_factory=time.monotonic)

    def make(self, command: Command) -> Completed:
        transcript = transcripts.begin(
            self.request.tenant_id, self.request.run_id, secrets=redaction.secrets_of(self.request)
        )
        reader = output.reader_of(self.chosen.output, self.link, on_stop=self._request_stop)
        live = output.LiveLines(self.link, "note")
        most = self.request.max_turns

        def hear(chunk: bytes) -> None:
            transcript.output(chunk)
            reader.feed(chunk)
            if most is not None and reader.turns > most:
                self.stop = MAX_TURNS

        def hear_error(chunk: bytes) -> None:
            transcript.error(chunk)
            live.feed(chunk)
            self.tail = (self.tail + chunk)[-TAIL_BYTES:]

        try:
            ended = processes.run(command, Watch(hear, hear_error, self._stop_reason, self._note_resources))
        finally:
            transcript.close()
            live.close()
        self._report(ended.resources)
        return self._result(ended, reader.close())

    def _request_stop(self, reason: str) -> None:
        self.stop = reason

    def _stop_reason(self) -> str | None:
        return self.stop or self.link.stop_reason()

    def _note_resources(self, resources: Resources) -> None:
        if (now := time.monotonic()) - self.reported >= REPORT_SECONDS:
            self.reported = now
            self._report(resources)

    def _report(self, resources: Resources) -> None:
        self.link.note_progress({"resources": resources.as_dict()})

    def _result(self, ended: ProcessEnd, output: AgentOutput) -> Completed:
        if ended.stopped == processes.OVERDUE:
            message = f"The agent did not finish within {self.request.timeout_seconds:g} s and was ended."
            raise RetryableAgentError(message, code="agent_timeout")
        if ended.stopped is not None and self.stop == MAX_TURNS:
            raise PermanentAgentError(
                f"The agent was not done after {self.request.max_turns} turns.", code=MAX_TURNS
            )
        if ended.stopped is not None:
            raise RetryableAgentError(f"The agent was ended: {ended.stopped}", code="agent_stopped")
        if ended.code == 0 and output.fault is not None:
            raise output.fault
        if ended.code == 0 and output.result is not None:
            return output.result
        raise self._failure(ended, output)

    def _failure(self, ended: ProcessEnd, output: AgentOutput) -> AgentError:
        detail = output.error or bytes(self.tail).decode("utf-8", "replace")
        shown = redaction.excerpt(detail, secrets=redaction.secrets_of(self.request))
        message = f"The agent {_end_of(ended)}" + (f": {shown}" if shown else ".")
        unknown = self.chosen.session_invalid
        if self.request.session_id and unknown and unknown.search(f"{output.error or ''}\n{detail}"):
            return SessionInvalid(message)
        if (limited := self.chosen.rate_limited) and limited.search(f"{output.error or ''}\n{detail}"):
            return AgentRateLimited(message, retry_after=self.chosen.retry_after_seconds)
        if ended.code < 0:
            return RetryableAgentError(message, code="agent_killed")
        if output.kind == "error_max_turns":
            return PermanentAgentError(message, code=MAX_TURNS)
        if ended.code in self.chosen.permanent_exit_codes or output.kind in self.chosen.permanent_errors:
            return PermanentAgentError(message, code="agent_failed")
        if ended.code == processes.launcher.NOT_STARTED and "cannot be started" in detail:
            return ConfigurationError(message)
        return RetryableAgentError(message, code="agent_failed")


def _end_of(ended: ProcessEnd) -> str:
    if ended.code < 0:
        try:
            return f"was killed by {signal.Signals(-ended.code).name}"
        except ValueError:
            return f"was killed by signal {-ended.code}"
    return f"ended with exit code {ended.code}" + ("" if ended.code else " and without a result")


def _with_work(result: Completed, tree: Worktree | None) -> Completed:
    """The result, with what came of the repository as `data.git`."""
    if tree is None:
        return result
    data, work = result.output.data, tree.outcome()
    merged: Any = (
        {**data, "git": work}
        if isinstance(data, dict)
        else {"git": work}
        if data is None
        else {"result": data, "git": work}
    )
    return replace(result, output=replace(result.output, data=merged))


def _keep_work(tree: Worktree | None) -> None:
    """On the branch, for the next attempt. A failure to keep it must not hide why the agent failed."""
    if tree is None:
        return
    try:
        tree.outcome()
    except AgentError as error:
        logger.warning("Work of a failed run not kept", extra={"action": "work_lost", "reason": str(error)})
