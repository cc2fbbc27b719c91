"""Everything that can go wrong on the way to an agent. `retryable` decides whether the run is tried again."""

from __future__ import annotations

from typing import ClassVar

from tenants.exceptions import NoneOfKind, OneOfKind


class AgentError(Exception):
    """An agent could not do the work."""

    code: ClassVar[str] = "agent_error"
    retryable: ClassVar[bool] = False
    uses_attempt: ClassVar[bool] = True  # whether a retry counts against max_attempts

    def __init__(self, message: str, *, code: str | None = None, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.error_code = code or self.code
        self.retry_after = retry_after  # seconds; None leaves the delay to the retry policy
        self.nothing_sent = False  # whether it is certain that the other side was told nothing
        self.held_by: str | None = None  # the provider that has to be waited for
        # Whether `retry_after` says when there is room; otherwise there may be at any time.
        self.room_is_timed = True


class RetryableAgentError(AgentError):
    """An error that may pass: no connection, a timeout, an answer of 408, 425 or 5xx."""

    code = "agent_unavailable"
    retryable = True


class AgentRateLimited(RetryableAgentError):
    """The agent or its provider asked to come back later (429). Uses up no attempt."""

    code = "rate_limited"
    uses_attempt = False


class BudgetSpent(RetryableAgentError):
    """What the run has consumed is more than a budget holds. It goes on when there is money again, and uses up no attempt."""

    code = "budget"
    uses_attempt = False


class LeftBatch(RetryableAgentError):
    """The work does not wait for its batch any longer; it goes on at once. Uses up no attempt."""

    code = "left_batch"
    uses_attempt = False

    def __init__(self, message: str) -> None:
        super().__init__(message, retry_after=0.0)


class InputUnavailable(RetryableAgentError):
    """What the run works on cannot be read for the moment. Not the agent's fault, so it uses up no attempt."""

    code = "input_unavailable"
    uses_attempt = False


class ServerAway(RetryableAgentError):
    """A server that the engine needs went away during the run. Says nothing about the agent, so it uses up no attempt."""

    code = "server_away"
    uses_attempt = False


class CallsAtLimit(RetryableAgentError):
    """The time was over before the platform's cap of concurrent calls let this one begin. Uses up no attempt."""

    code = "calls_at_limit"
    uses_attempt = False


class PermanentAgentError(AgentError):
    """Another try would not help: the agent refused the request or its answer cannot be read."""

    code = "agent_refused"


class SessionInvalid(PermanentAgentError):
    """The agent does not know the conversation that it was asked to continue."""

    code = "session_invalid"


class ConfigurationError(PermanentAgentError):
    """The role cannot run as configured: no endpoint, an unknown adapter, a callable that does not exist."""

    code = "agent_misconfigured"


class OutboundRefused(PermanentAgentError):
    """The outbound guard does not let this address be called."""

    code = "outbound_refused"


class RoleNotFound(AgentError):
    """No agent of the registry has this role."""

    code = "unknown_role"


class RegistryError(Exception):
    """The registry of agents cannot be changed as was asked. Nothing to do with a run."""

    code: ClassVar[str] = "registry_error"
    status: ClassVar[int] = 409


class NotFound(NoneOfKind, RegistryError):
    """The registry has nothing of this kind and key."""


class AlreadyExists(OneOfKind, RegistryError):
    """The registry has something of this kind and key already."""


class DeploymentConflict(RegistryError):
    """Somebody else has changed what is deployed since it was looked at."""

    code = "deployment_conflict"


class AlreadyInProduction(RegistryError):
    """The version is the one in production."""

    code = "already_in_production"


class NothingToRollBackTo(RegistryError):
    """No version was in production before the present one."""

    code = "nothing_to_roll_back_to"


class VersionInvalid(RegistryError):
    """The version is not a semantic version."""

    code = "validation_failed"
    status = 400

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.errors = [("version", message)]


class AgentInUse(RegistryError):
    """Schedules, pipelines or work that is not done refer to the agent, so it cannot be deleted."""

    code = "agent_in_use"
