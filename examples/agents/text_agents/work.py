"""Work: does one job, either while the caller waits or in the background after an answer of 202.

A job that was accepted and then lost (this process died) is not our problem: its heartbeats end, and the
orchestrator gives the job to somebody else.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import Any

from . import switches
from .callbacks import Reporter, Stopped
from .job import Answer, Job
from .problem import Problem, malformed
from .recorder import Recorder
from .skills import Skill

logger = logging.getLogger(__name__)


class Workshop:
    """Runs skills and records the calls."""

    def __init__(self) -> None:
        self.recorder = Recorder()
        self._failures = switches.Failures()

    def take(self, job: Job, skill: Skill) -> tuple[int, dict[str, Any]]:
        """Do the job and return (200, result), or accept it and return 202. Raises `Problem` to refuse it."""
        self.recorder.begin(job)
        try:
            self._failures.raise_if_requested(job)
            if switches.is_async(job):
                return self._accept(job, skill)
            time.sleep(switches.delay_seconds(job))
            result = result_of(job, skill)
        except BaseException:
            self.recorder.end(job, failed=True)
            raise
        self.recorder.end(job, failed=False)
        return 200, result

    def _accept(self, job: Job, skill: Skill) -> tuple[int, dict[str, Any]]:
        if job.callback is None:
            raise malformed("callback", "is needed to work in the background")
        reporter = Reporter(job.callback)
        threading.Thread(target=self._work_and_report, args=(job, skill, reporter), daemon=True).start()
        return 202, {"accepted": True}

    def _work_and_report(self, job: Job, skill: Skill, reporter: Reporter) -> None:
        try:
            outcome = self._work(job, skill, reporter)
            if isinstance(outcome, Problem):
                reporter.fail(outcome)
            else:
                reporter.complete(outcome)
        except Stopped as reason:
            logger.info("Run stopped: %s", reason, extra={"action": "run_stopped", "run": job.execution_id})

    def _work(self, job: Job, skill: Skill, reporter: Reporter) -> dict[str, Any] | Problem:
        outcome: dict[str, Any] | Problem = Problem(500, "agent_error", "The work was not finished")
        try:
            _wait_with_heartbeats(job, reporter)
            outcome = result_of(job, skill)
        except Problem as problem:
            outcome = problem
        finally:
            self.recorder.end(job, failed=isinstance(outcome, Problem))
        return outcome


def result_of(job: Job, skill: Skill) -> dict[str, Any]:
    """Return the result of the job in the shape of the protocol. Raises only `Problem`."""
    try:
        answer = skill(job)
    except Problem:
        raise
    except Exception as error:
        logger.exception("Skill failed", extra={"action": "skill_failed", "role": job.role})
        raise Problem(500, "agent_error", "The agent has a fault; its log says more") from error
    output = {"content": answer.content, "data": answer.data, "content_type": "text/markdown"}
    session_id = answer.session_id or job.session_id
    return {"output": output, "usage": _usage(job, answer), "session_id": session_id}


def _usage(job: Job, answer: Answer) -> dict[str, Any]:
    """Count words as tokens, because there is no model."""
    words_read, words_written = len(job.text.split()), len(answer.content.split())
    return {"input_tokens": words_read, "output_tokens": words_written, "model": "word-count"}


def _wait_with_heartbeats(job: Job, reporter: Reporter) -> None:
    """Send heartbeats at every interval until the requested delay is over, at least one. Each is a line of the log."""
    reporter.log(f"I read {len(job.text.split())} words.")
    delay = switches.delay_seconds(job)
    end = time.monotonic() + delay
    reporter.heartbeat({"percent": 0, "message": "reading"})
    while (left := end - time.monotonic()) > 0:
        time.sleep(min(left, switches.heartbeat_seconds(job)))
        reporter.heartbeat({"percent": _percent(end, delay), "message": "working"})
    reporter.log("I write it down.")


def _percent(end: float, delay: float) -> int:
    return round(100 * (1 - max(0.0, end - time.monotonic()) / delay))
