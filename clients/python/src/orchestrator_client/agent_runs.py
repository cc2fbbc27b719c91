"""For agents: verifies that a job comes from the Orchestrator, and reports about its run.

    job = verify_job(headers, body, "whsec_...")
    with AgentRun.of(job) as run:
        run.heartbeat(progress={"page": 3})
        run.complete(output={"content": "..."})

Every report may be repeated. After the run was ended or replaced by others, every report raises RunSuperseded: stop working.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import httpx

from orchestrator_client import webhooks
from orchestrator_client.calls import GET, POST, D, Resource
from orchestrator_client.errors import InvalidSignature
from orchestrator_client.objects import Heartbeat, Job, Logged, Receipt, Record, ToolAnswer
from orchestrator_client.transport import (
    AsyncClosable,
    AsyncSender,
    RetryPolicy,
    SyncClosable,
    SyncSender,
    headers_of,
)


def verify_job(
    headers: Mapping[str, str],
    body: bytes | str,
    secrets: str | Iterable[str],
    *,
    tolerance: float = webhooks.TOLERANCE_SECONDS,
    now: float | None = None,
) -> Job:
    """Return the job if its signature is valid. Raises InvalidSignature: then answer 401 and do nothing."""
    found = webhooks.verify(headers, body, secrets, tolerance=tolerance, now=now)
    if not isinstance(found, dict) or not isinstance(found.get("callback"), dict):
        raise InvalidSignature("The signed body is not a job.")
    return Job(found)


class Callbacks(Resource[D]):
    """`/agent-runs/{run_id}/`, at the callback address of the job."""

    @GET("/", Job)
    def job(self, /, **options: Any) -> None:
        """Get the job again, for an agent that has lost it."""

    @GET("/skills/{key}/", Record)
    def skill(self, /, key: str, **options: Any) -> None:
        """Read a skill of the job's manifest."""

    @POST("/heartbeat/", Heartbeat)
    def heartbeat(
        self,
        /,
        *,
        progress: Any = None,
        usage: Mapping[str, Any] | None = None,
        session_id: str | None = None,
        **more: Any,
    ) -> None:
        """Send a heartbeat. `usage` is the total of the run so far."""

    @POST("/log/", Logged)
    def log(self, /, *, lines: Sequence[Mapping[str, Any]], **more: Any) -> None:
        """Append lines to the log of the run, which people can read: `{kind, text, at?}`, with the kinds text, tool_call, tool_result and
        note.

        Send several lines together, about once a second. If lines were dropped (`dropped`), neither stop nor repeat the call.
        """

    @POST("/complete/", Receipt)
    def complete(
        self,
        /,
        *,
        output: Mapping[str, Any],
        usage: Mapping[str, Any] | None = None,
        session_id: str | None = None,
        **more: Any,
    ) -> None:
        """Report the result, `{content?, data?, content_type?}`."""

    @POST("/fail/", Receipt)
    def report_failure(self, /, *, error: Mapping[str, Any], **more: Any) -> None:
        """Report a failure: `{message, code?, retryable?, retry_after?}`."""

    @POST("/tools/{tool}/", ToolAnswer)
    def use_tool(self, /, tool: str, **arguments: Any) -> None:
        """Call a tool by its name. The current tools have methods of their own."""

    @POST("/tools/report_blocker/", ToolAnswer)
    def report_blocker(
        self, /, *, type: str, message: str, channel_id: str | None = None, **more: Any
    ) -> None:
        """Report a blocker. The activity waits until a person has resolved it."""

    @POST("/tools/create_subtask/", ToolAnswer)
    def create_subtask(
        self,
        /,
        *,
        name: str,
        blocking: bool,
        description: str | None = None,
        agent_role: str | None = None,
        human_role: str | None = None,
        params: Mapping[str, Any] | None = None,
        **more: Any,
    ) -> None:
        """Create a subtask for another role. With `blocking`, the activity waits for it."""

    @POST("/tools/request_human_review/", ToolAnswer)
    def request_human_review(
        self, /, *, question: str, content: str | None = None, human_role: str | None = None, **more: Any
    ) -> None:
        """Ask a person. The activity waits for the answer."""

    @POST("/tools/create_approval/", ToolAnswer)
    def create_approval(
        self,
        /,
        *,
        type: str,
        title: str,
        options: Sequence[Any] | None = None,
        activity_ids: Sequence[str] | None = None,
        human_role: str | None = None,
        **more: Any,
    ) -> None:
        """Ask people to approve one or several activities: the run's own, its subtasks, and waiting work of its pipeline run or
        deliverable.

        In the answer, `held` lists the activities that now wait, and `not_held` the others with the reason."""

    @POST("/tools/reassign_task/", ToolAnswer)
    def reassign_task(
        self,
        /,
        *,
        reason: str,
        assignee_type: str | None = None,
        agent_role: str | None = None,
        human_role: str | None = None,
        **more: Any,
    ) -> None:
        """Reassign the activity to another role."""


class AgentRun(Callbacks[SyncSender], SyncClosable):
    """The run of a job, for a blocking agent. `url` and `token` are those of the job's `callback`."""

    def __init__(
        self, url: str, token: str, *, timeout: float = 30.0, retries: RetryPolicy | None = None, **http: Any
    ) -> None:
        self._http = httpx.Client(base_url=url, headers=headers_of(token), timeout=timeout, **http)
        super().__init__(SyncSender(self._http, retries or RetryPolicy()))

    @classmethod
    def of(cls, job: Job, **options: Any) -> AgentRun:
        """Return the run of this job."""
        return cls(job.callback["url"], job.callback["token"], **options)

    def fail(self, message: str, *, retryable: bool = True, **error: Any) -> Receipt:
        """Report a failure; `code` and `retry_after` are optional."""
        return self.report_failure(error={"message": message, "retryable": retryable, **error})


class AsyncAgentRun(Callbacks[AsyncSender], AsyncClosable):
    """The asynchronous variant of `AgentRun`."""

    def __init__(
        self, url: str, token: str, *, timeout: float = 30.0, retries: RetryPolicy | None = None, **http: Any
    ) -> None:
        self._http = httpx.AsyncClient(base_url=url, headers=headers_of(token), timeout=timeout, **http)
        super().__init__(AsyncSender(self._http, retries or RetryPolicy()))

    @classmethod
    def of(cls, job: Job, **options: Any) -> AsyncAgentRun:
        """Return the run of this job."""
        return cls(job.callback["url"], job.callback["token"], **options)

    async def fail(self, message: str, *, retryable: bool = True, **error: Any) -> Receipt:
        """See `AgentRun.fail`."""
        return await self.report_failure(error={"message": message, "retryable": retryable, **error})
