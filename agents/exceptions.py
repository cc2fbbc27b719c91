"""The errors of calls to agents, and of changes of their registry. `retryable` decides whether a run is retried."""

from __future__ import annotations

from typing import ClassVar

from tenants.exceptions import NoneOfKind, OneOfKind, Refusal


class AgentError(Exception):
    """An agent could not do the work."""

    code: ClassVar[str] = "agent_error"
    retryable: ClassVar[bool] = False
    uses_attempt: ClassVar[bool] = True  # whether a retry counts against max_attempts

    def __init__(self, message: str, *, code: str | None = None, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.error_code = code or self.code
        self.retry_after = retry_after  # seconds; None leaves the delay to the retry policy
        self.nothing_sent = False  # whether it is certain that nothing reached the other side
        self.held_by: str | None = None  # the provider whose limit delays the run
        # Whether `retry_after` is the time when there is capacity; otherwise there may be some at any time.
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
    """The run has consumed more than a budget allows. It continues when there is money again, and uses up no attempt."""

    code = "budget"
    uses_attempt = False


class LeftBatch(RetryableAgentError):
    """The work no longer waits for its batch, and is done at once. Uses up no attempt."""

    code = "left_batch"
    uses_attempt = False

    def __init__(self, message: str) -> None:
        super().__init__(message, retry_after=0.0)


class InputUnavailable(RetryableAgentError):
    """The input of the run is temporarily unavailable. That is not the agent's fault, so it uses up no attempt."""

    code = "input_unavailable"
    uses_attempt = False


class ServerAway(RetryableAgentError):
    """A server that the engine needs failed during the run. That is not the agent's fault, so it uses up no attempt."""

    code = "server_away"
    uses_attempt = False


class CallsAtLimit(RetryableAgentError):
    """The run timed out while it waited for the platform's limit of concurrent calls. Uses up no attempt."""

    code = "calls_at_limit"
    uses_attempt = False


class PermanentAgentError(AgentError):
    """A retry would not help: the agent refused the request or its answer cannot be read."""

    code = "agent_refused"


class SessionInvalid(PermanentAgentError):
    """The agent does not know the conversation that it was asked to continue."""

    code = "session_invalid"


class ConfigurationError(PermanentAgentError):
    """The role cannot run as configured: no endpoint, an unknown adapter, a callable that does not exist."""

    code = "agent_misconfigured"


class CredentialsUnreadable(ConfigurationError):
    """The role's credentials cannot be decrypted in this process. Another one may have their key."""


class OutboundRefused(PermanentAgentError):
    """The outbound policy forbids calls to this address."""

    code = "outbound_refused"


class RoleNotFound(AgentError):
    """No agent of the registry has this role."""

    code = "unknown_role"


class RegistryError(Refusal):
    """The requested change of the registry of agents was refused. Not an error of a run."""

    code = "registry_error"


class NotFound(NoneOfKind, RegistryError):
    """The registry has nothing of this kind and key."""


class AlreadyExists(OneOfKind, RegistryError):
    """The registry has something of this kind and key already."""


class DeploymentConflict(RegistryError):
    """Somebody else has changed the deployments since they were read."""

    code = "deployment_conflict"


class VersionInvalid(RegistryError):
    """The version is not a semantic version."""

    code = "validation_failed"
    status = 400

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.errors = [("version", message)]


class AgentInUse(RegistryError):
    """Schedules, pipelines or open work refer to the agent, so it cannot be deleted."""

    code = "agent_in_use"
