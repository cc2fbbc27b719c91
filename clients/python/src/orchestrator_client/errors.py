"""What can go wrong, as exceptions: by the `code` of the server's problem document where the client knows it, else by status.

Catch the narrow class where you can act on it, `ApiError` for every refusal of the server, `OrchestratorError` for everything.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar


class OrchestratorError(Exception):
    """Everything that this package raises."""


class ConnectionFailed(OrchestratorError):
    """No answer came, also after the retries. Whether the request took effect is unknown; repeat it with the same
    `idempotency_key` to find out.
    """

    def __init__(self, message: str, *, idempotency_key: str | None = None) -> None:
        super().__init__(message)
        self.idempotency_key = idempotency_key


class UnreadableAnswer(OrchestratorError):
    """What came back is not what this API answers, so something else is listening there."""


class InvalidSignature(OrchestratorError):
    """The message was not signed with one of the secrets, is too old, or is no signed message at all."""


class WaitTimedOut(OrchestratorError):
    """The activity was not where it was waited for in time. `activity` is as it was last seen."""

    def __init__(self, message: str, activity: Any) -> None:
        super().__init__(message)
        self.activity = activity


@dataclass(frozen=True)
class Fault:
    """One thing wrong with a request: where it stands in the body or the query, and what is wrong with it."""

    path: str
    message: str


class ApiError(OrchestratorError):
    """The server refused. `code` is stable, `detail` is for people, `errors` names every fault by its path.

    `members` is the whole problem document, with what a kind of problem tells beyond that (who decided and when, for
    instance). `retry_after` is in seconds. `idempotency_key` is the one that was sent, so that the request can be repeated.
    """

    #: The status or the code that a class stands for.
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
        super().__init__(self._told())

    def _told(self) -> str:
        faults = "; ".join(f"{fault.path}: {fault.message}" for fault in self.errors)
        request = f" [request {self.request_id}]" if self.request_id else ""
        return f"{self.status} {self.code}: {self.detail}{f' ({faults})' if faults else ''}{request}"


class BadRequest(ApiError):
    status_of_class = 400


class Unauthenticated(ApiError):
    """The token is missing, wrong, revoked or has run out."""

    status_of_class = 401


class Forbidden(ApiError):
    """The token's role may not do this."""

    status_of_class = 403


class NotFound(ApiError):
    """There is no such thing for this tenant."""

    status_of_class = 404


class Conflict(ApiError):
    """It is not in a state in which this can be done."""

    status_of_class = 409


class Gone(ApiError):
    """It was there, and is no longer kept."""

    status_of_class = 410


class PreconditionFailed(ApiError):
    """Somebody has changed it since the ETag was read: read again, look, and repeat."""

    status_of_class = 412


class TooLarge(ApiError):
    status_of_class = 413


class Unprocessable(ApiError):
    status_of_class = 422


class RateLimited(ApiError):
    """Too much at once. The client has already waited and repeated; `retry_after` says when to come again."""

    status_of_class = 429


class ServerError(ApiError):
    """A fault of the server; `request_id` finds it in its logs."""


class Unavailable(ServerError):
    """The server, or something that it needs, is away for the moment."""

    status_of_class = 503


class ValidationFailed(BadRequest):
    """`errors` names every fault by its path."""

    code_of_class = "validation_failed"


class AlreadyExists(Conflict):
    code_of_class = "already_exists"


class AlreadyDecided(Conflict):
    """Somebody has decided already; `members` tells who, what and when."""

    code_of_class = "already_decided"


class TransitionRefused(Conflict):
    """The activity is no longer in a status from which this step starts."""

    code_of_class = "transition_refused"


class RequestInProgress(Conflict):
    """A request with this `idempotency_key` is still being worked on. Repeat it with the same key a moment later."""

    code_of_class = "idempotency_in_progress"


class RunSuperseded(Conflict):
    """The run is over or another has taken its place: stop working, nothing that is sent will count."""

    code_of_class = "run_superseded"


class RunEnded(Conflict):
    """The run has ended: stop working, nothing that is sent will count."""

    code_of_class = "run_ended"


class LeaseLost(Conflict):
    """The batch is not the consumer's any more: others may have its items, what is said about it no longer counts."""

    code_of_class = "lease_lost"


class IdempotencyKeyReused(Unprocessable):
    """The key was used for another request before."""

    code_of_class = "idempotency_key_reused"


class BacklogFull(RateLimited):
    """The role has as much waiting work of this tenant as it may have."""

    code_of_class = "backlog_full"


def error_class(status: int, code: str | None) -> type[ApiError]:
    """The narrowest class for a refusal."""
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
    """Whatever the list holds: an unexpected member must not hide the refusal."""
    if not isinstance(errors, list):
        return []
    members = (entry for entry in errors if isinstance(entry, Mapping))
    return [Fault(str(entry.get("path", "")), str(entry.get("message", ""))) for entry in members]
