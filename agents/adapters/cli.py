"""The cli adapter: runs an agent that is a program on this machine, in a separate process.

Only operators choose the program (`options` of the registry, see agents/command_line/options.py). The adapter records the session as soon
as it appears, usage as it is reported, the transcript as it is printed, and use of memory and processor during the run. When the call
ends, in whatever way, the program and all its child processes have ended; if the worker is killed, the kernel and `sweep` end them.

    exit 0 with a result                    the output of the run
    `session_invalid` matches the failure   the conversation is unknown: the run starts again without one
    `rate_limited` matches the failure      retried later, without using up an attempt
    a listed exit code, a listed error      permanent
    any other exit code, any signal         retried
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

TAIL_BYTES = 8_192  # of standard error, for the error message
MAX_TURNS = "max_turns"  # the error code of an agent that needed more turns than it was allowed
REPORT_SECONDS = 5.0  # between two reports of the run's resources


class CliAdapter:
    def run(self, request: AgentRequest, *, link: RunLink) -> AgentResult:
        """Run the program once. Raises the matching `AgentError` if it fails."""
        chosen = options.read(request.settings.options)
        invocation.program_of(chosen)
        with (
            _user_of(request, chosen) as user,
            workspaces.create_workspace(request.run_id, user) as workspace,
            workspaces.check_out(request, chosen, workspace) as tree,
        ):
            command = invocation.command_of(
                request, chosen, files=workspace.files, work=tree.path if tree else workspace.work,
                repository=str(tree.repository) if tree else None, user=workspace.user,
            )  # fmt: skip
            try:
                result = _Call(request, chosen, link).make(command)
            except AgentError:
                _keep_work(tree)
                raise
            return _with_work(result, tree)


@contextmanager
def _user_of(request: AgentRequest, chosen: Options) -> Iterator[OwnUser | None]:
    """The user that the program runs as. None means the worker's own user, which only the settings allow."""
    if not users.needs_own_user():
        yield None
        return
    if chosen.home == "worker":
        raise options.invalid("home", "cannot be the worker's: here each run has its own user")
    with users.allocate(invocation.home_of(request)) as user:
        yield user


@dataclass(slots=True)
class _Call:
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
        if ended.code == 0 and output.invalid is not None:
            raise output.invalid
        if ended.code == 0 and output.result is not None:
            return output.result
        raise self._failure(ended, output)

    def _failure(self, ended: ProcessEnd, output: AgentOutput) -> AgentError:
        detail = output.error or bytes(self.tail).decode("utf-8", "replace")
        # The last lines of what a program writes before it ends say why it ended.
        excerpt = redaction.excerpt_for(self.request, detail, end=not output.error)
        message = f"The agent {_end_of(ended)}" + (f": {excerpt}" if excerpt else ".")
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
    """Return the result, with the changes to the repository as `data.git`."""
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
    """Save the work on its branch, for the next attempt. A failure to save it must not hide why the agent failed."""
    if tree is None:
        return
    try:
        tree.outcome()
    except AgentError as error:
        logger.warning(
            "Work of a failed run could not be kept", extra={"action": "work_lost", "reason": str(error)}
        )
