"""A client for the Orchestrator's API.

`Client` and `AsyncClient` have a method for every operation. `AgentRun` is for agents. `queue` offers the interface of an in-memory
queue on mailboxes, and a way to migrate from one to the other.
"""

from orchestrator_client.agent_runs import AgentRun, AsyncAgentRun, verify_job
from orchestrator_client.client import NEEDS_SOMEBODY, SETTLED, AsyncClient, Client
from orchestrator_client.errors import (
    AlreadyDecided,
    AlreadyExists,
    ApiError,
    BacklogFull,
    BadRequest,
    Conflict,
    ConnectionFailed,
    Fault,
    Forbidden,
    Gone,
    IdempotencyKeyReused,
    InvalidSignature,
    LeaseLost,
    NotFound,
    OrchestratorError,
    PreconditionFailed,
    RateLimited,
    RequestInProgress,
    RunSuperseded,
    ServerError,
    TransitionRefused,
    Unauthenticated,
    Unavailable,
    UnreadableAnswer,
    ValidationFailed,
    WaitTimedOut,
)
from orchestrator_client.events import Event
from orchestrator_client.objects import Activity, Job, Output, PipelineRun, Record, Run, Schedule, Why
from orchestrator_client.transport import VERSION as __version__
from orchestrator_client.transport import RetryPolicy

__all__ = (
    "NEEDS_SOMEBODY",
    "SETTLED",
    "Activity",
    "AgentRun",
    "AlreadyDecided",
    "AlreadyExists",
    "ApiError",
    "AsyncAgentRun",
    "AsyncClient",
    "BacklogFull",
    "BadRequest",
    "Client",
    "Conflict",
    "ConnectionFailed",
    "Event",
    "Fault",
    "Forbidden",
    "Gone",
    "IdempotencyKeyReused",
    "InvalidSignature",
    "Job",
    "LeaseLost",
    "NotFound",
    "OrchestratorError",
    "Output",
    "PipelineRun",
    "PreconditionFailed",
    "RateLimited",
    "Record",
    "RequestInProgress",
    "RetryPolicy",
    "Run",
    "RunSuperseded",
    "Schedule",
    "ServerError",
    "TransitionRefused",
    "Unauthenticated",
    "Unavailable",
    "UnreadableAnswer",
    "ValidationFailed",
    "WaitTimedOut",
    "Why",
    "__version__",
    "verify_job",
)
