"""For agents: checks that a job comes from the Orchestrator, and speaks to it about the run.

    job = verify_job(headers, body, "whsec_...")
    with AgentRun.of(job) as run:
        run.heartbeat(progress={"page": 3})
        run.complete(output={"content": "..."})

Every report may be repeated. Once a run is over for another reason each of them raises RunSuperseded: stop working.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any

import httpx

from orchestrator_client import webhooks
from orchestrator_client.calls import GET, POST, D, Resource
from orchestrator_client.errors import InvalidSignature
from orchestrator_client.objects import Heartbeat, Job, Logged, Receipt, Record, ToolAnswer
from orchestrator_client.transport import AsyncDoor, RetryPolicy, SyncDoor, headers_of


def verify_job(
    headers: Mapping[str, str],
    body: bytes | str,
    secrets: str | Iterable[str],
    *,
    tolerance: float = webhooks.TOLERANCE_SECONDS,
    now: float | None = None,
) -> Job:
    """The job, if its signature fits. Raises InvalidSignature: answer 401 and do nothing."""
    found = webhooks.verify(headers, body, secrets, tolerance=tolerance, now=now)
    if not isinstance(found, dict) or not isinstance(found.get("callback"), dict):
        raise InvalidSignature("What was signed is no job.")
    return Job(found)


class Callbacks(Resource[D]):
    """`/agent-runs/{run_id}/`, below the address that the job names."""

    @GET("/", Job)
    def job(self, /, **options: Any) -> None:
        """The job again, for an agent that lost it."""

    @GET("/skills/{key}/", Record)
    def skill(self, /, key: str, **options: Any) -> None:
        """A skill of the job's manifest in full."""

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
        """Say that the agent lives. `usage` is the total of the run so far."""

    @POST("/log/", Logged)
    def log(self, /, *, lines: Sequence[Mapping[str, Any]], **more: Any) -> None:
        """Let people read what the agent does while it does it: `{kind, text, at?}`, of the kinds text, tool_call, tool_result and note.

        Send several lines at once, about once a second. Lines that are not kept (`dropped`) are no reason to stop or to repeat the call.
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
        """Give the result, `{content?, data?, content_type?}`."""

    @POST("/fail/", Receipt)
    def report_failure(self, /, *, error: Mapping[str, Any], **more: Any) -> None:
        """Say that it cannot be done: `{message, code?, retryable?, retry_after?}`."""

    @POST("/tools/{tool}/", ToolAnswer)
    def use_tool(self, /, tool: str, **arguments: Any) -> None:
        """Any tool by name; those that there are today have methods of their own."""

    @POST("/tools/report_blocker/", ToolAnswer)
    def report_blocker(
        self, /, *, type: str, message: str, channel_id: str | None = None, **more: Any
    ) -> None:
        """Say what is in the way; the activity waits until a person has resolved it."""

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
        """Let another role do a part; with `blocking` the activity waits for it."""

    @POST("/tools/request_human_review/", ToolAnswer)
    def request_human_review(
        self, /, *, question: str, content: str | None = None, human_role: str | None = None, **more: Any
    ) -> None:
        """Ask a person; the activity waits for the answer."""

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
        """Ask for an approval, of several activities if need be: the run's own, its subtasks, and what waits in its pipeline run or
        deliverable. `held` of the answer are those that wait now, `not_held` the others with the reason."""

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
        """Hand the activity to whom it belongs."""


class AgentRun(Callbacks[SyncDoor]):
    """One run, for an agent that blocks. `url` and `token` are those of the job's `callback`."""

    def __init__(
        self, url: str, token: str, *, timeout: float = 30.0, retries: RetryPolicy | None = None, **http: Any
    ) -> None:
        self._http = httpx.Client(base_url=url, headers=headers_of(token), timeout=timeout, **http)
        super().__init__(SyncDoor(self._http, retries or RetryPolicy()))

    @classmethod
    def of(cls, job: Job, **options: Any) -> AgentRun:
        """The run of this job."""
        return cls(job.callback["url"], job.callback["token"], **options)

    def fail(self, message: str, *, retryable: bool = True, **error: Any) -> Receipt:
        """Say that it cannot be done; `code` and `retry_after` are possible besides."""
        return self.report_failure(error={"message": message, "retryable": retryable, **error})

    def close(self) -> None:
        self._http.close()

    def __enter__(self) -> AgentRun:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class AsyncAgentRun(Callbacks[AsyncDoor]):
    """The same, awaited."""

    def __init__(
        self, url: str, token: str, *, timeout: float = 30.0, retries: RetryPolicy | None = None, **http: Any
    ) -> None:
        self._http = httpx.AsyncClient(base_url=url, headers=headers_of(token), timeout=timeout, **http)
        super().__init__(AsyncDoor(self._http, retries or RetryPolicy()))

    @classmethod
    def of(cls, job: Job, **options: Any) -> AsyncAgentRun:
        """The run of this job."""
        return cls(job.callback["url"], job.callback["token"], **options)

    async def fail(self, message: str, *, retryable: bool = True, **error: Any) -> Receipt:
        """As `AgentRun.fail`."""
        return await self.report_failure(error={"message": message, "retryable": retryable, **error})

    async def close(self) -> None:
        await self._http.aclose()

    async def __aenter__(self) -> AsyncAgentRun:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
