"""The exceptions of this package. For refusals of the server, the class follows from the `code` of the problem document, or else from the
status.

Catch a specific class where you can act on it, `ApiError` for every refusal of the server, and `OrchestratorError` for everything.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar


class OrchestratorError(Exception):
    """The base class of all exceptions of this package."""


class ConnectionFailed(OrchestratorError):
    """There was no answer, even after the retries. The request may have taken effect; repeat it with the same `idempotency_key` to find
    out.
    """

    def __init__(self, message: str, *, idempotency_key: str | None = None) -> None:
        super().__init__(message)
        self.idempotency_key = idempotency_key


class UnreadableAnswer(OrchestratorError):
    """The answer does not look like this API's, so another server probably listens at this address."""


class InvalidSignature(OrchestratorError):
    """The message is not signed with one of the secrets, is too old, or has no signature."""


class WaitTimedOut(OrchestratorError):
    """The activity did not reach one of the expected statuses in time. `activity` is its last known state."""

    def __init__(self, message: str, activity: Any) -> None:
        super().__init__(message)
        self.activity = activity


@dataclass(frozen=True)
class Fault:
    """One error in a request: its path in the body or the query, and a message."""

    path: str
    message: str


class ApiError(OrchestratorError):
    """The server refused the request. `code` is stable, `detail` is for people, `errors` lists all errors with their paths.

    `members` is the whole problem document, with further members that depend on the problem (for instance who decided, and when).
    `retry_after` is in seconds. `idempotency_key` is the key that was sent, so that the request can be repeated.
    """

    #: The status or the code of the class.
    status_of_class: ClassVar[int | None] = None
    code_of_class: ClassVar[str | None] = None

    def __init__(
        self,
        status: int,
        members: Mapping[str, Any] | None = None,
        *,
        retry_after: float | None = None,
        idempotency_key: str | None = None,
    ) -> None:
        self.members = dict(members or {})
        self.status = status
        self.code = str(self.members.get("code") or f"http_{status}")
        self.detail = str(self.members.get("detail") or self.members.get("title") or "")
        self.errors = tuple(_faults_of(self.members.get("errors")))
        self.request_id: str | None = self.members.get("request_id")
        self.retry_after = retry_after
        self.idempotency_key = idempotency_key
        super().__init__(self._describe())

    def _describe(self) -> str:
        faults = "; ".join(f"{fault.path}: {fault.message}" for fault in self.errors)
        request = f" [request {self.request_id}]" if self.request_id else ""
        return f"{self.status} {self.code}: {self.detail}{f' ({faults})' if faults else ''}{request}"


class BadRequest(ApiError):
    status_of_class = 400


class Unauthenticated(ApiError):
    """The token is missing, invalid, revoked or expired."""

    status_of_class = 401


class Forbidden(ApiError):
    """The token's role is not allowed to do this."""

    status_of_class = 403


class NotFound(ApiError):
    """The tenant has no such object."""

    status_of_class = 404


class Conflict(ApiError):
    """The state of the object does not allow this."""

    status_of_class = 409


class Gone(ApiError):
    """It existed, but is no longer stored."""

    status_of_class = 410


class PreconditionFailed(ApiError):
    """The object was changed after its ETag was read. Read it again and decide again."""

    status_of_class = 412


class TooLarge(ApiError):
    status_of_class = 413


class Unprocessable(ApiError):
    status_of_class = 422


class RateLimited(ApiError):
    """Too many requests. The client has already waited and retried; wait for `retry_after` seconds."""

    status_of_class = 429


class ServerError(ApiError):
    """An error of the server. Its logs contain the `request_id`."""


class Unavailable(ServerError):
    """The server, or a server that it needs, is temporarily unavailable."""

    status_of_class = 503


class ValidationFailed(BadRequest):
    """The request is invalid; `errors` lists all errors with their paths."""

    code_of_class = "validation_failed"


class AlreadyExists(Conflict):
    code_of_class = "already_exists"


class AlreadyDecided(Conflict):
    """Somebody has already decided; `members` says who, what and when."""

    code_of_class = "already_decided"


class TransitionRefused(Conflict):
    """The status of the activity no longer allows this transition."""

    code_of_class = "transition_refused"


class RequestInProgress(Conflict):
    """A request with this `idempotency_key` is still running. Repeat it with the same key a moment later."""

    code_of_class = "idempotency_in_progress"


class RunSuperseded(Conflict):
    """The run has ended or was replaced by another one. Stop working: further reports are refused."""

    code_of_class = "run_superseded"


class RunEnded(Conflict):
    """The run of a pipeline has ended already, so it cannot be cancelled."""

    code_of_class = "run_ended"


class LeaseLost(Conflict):
    """The batch no longer belongs to this consumer. Others may have its items, and reports about it are refused."""

    code_of_class = "lease_lost"


class IdempotencyKeyReused(Unprocessable):
    """The key was already used for a different request."""

    code_of_class = "idempotency_key_reused"


class BacklogFull(RateLimited):
    """Too much work of this tenant already waits for the role."""

    code_of_class = "backlog_full"


def error_class(status: int, code: str | None) -> type[ApiError]:
    """Return the most specific class for a refusal."""
    by_code, by_status = _classes()
    if code in by_code:
        return by_code[code]
    return by_status.get(status, ServerError if status >= 500 else ApiError)


def _classes() -> tuple[dict[str | None, type[ApiError]], dict[int | None, type[ApiError]]]:
    known: list[type[ApiError]] = []
    left: list[type[ApiError]] = [ApiError]
    while left:
        children = left.pop().__subclasses__()
        known += children
        left += children
    by_code: dict[str | None, type[ApiError]] = {
        kind.code_of_class: kind for kind in known if kind.code_of_class
    }
    by_status = {kind.status_of_class: kind for kind in known if "status_of_class" in vars(kind)}
    return by_code, by_status


def _faults_of(errors: Any) -> list[Fault]:
    """Parse the list tolerantly, because an unexpected member must not hide the refusal."""
    if not isinstance(errors, list):
        return []
    members = (entry for entry in errors if isinstance(entry, Mapping))
    return [Fault(str(entry.get("path", "")), str(entry.get("message", ""))) for entry in members]
