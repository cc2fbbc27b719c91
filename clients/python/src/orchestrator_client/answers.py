"""From an answer of HTTP to what a method returns, or to the exception that it raises."""

from __future__ import annotations

import json
from typing import Any, TypeVar

import httpx

from orchestrator_client.errors import ApiError, ConnectionFailed, UnreadableAnswer, error_class
from orchestrator_client.objects import Record
from orchestrator_client.operations import Prepared
from orchestrator_client.retrying import retry_after_of

T = TypeVar("T")


def accepted(outcome: httpx.Response | httpx.TransportError, request: Prepared) -> httpx.Response:
    """The answer, if it is one of success. Raises ConnectionFailed or the ApiError of the refusal."""
    if isinstance(outcome, httpx.TransportError):
        told = f"{request.method} {request.path}: {str(outcome) or type(outcome).__name__}"
        raise ConnectionFailed(told, idempotency_key=request.key) from outcome
    if outcome.is_success:
        return outcome
    raise refusal(outcome, request.key)


def refusal(response: httpx.Response, key: str | None = None) -> ApiError:
    """The exception for an answer whose body has been read. A body that is no problem document tells its status alone."""
    try:
        members = json.loads(response.content)
    except ValueError:
        members = None
    if not isinstance(members, dict):
        members = {"detail": response.reason_phrase}
    kind = error_class(response.status_code, members.get("code"))
    return kind(response.status_code, members, retry_after=retry_after_of(response), idempotency_key=key)


def shaped(response: httpx.Response, shape: type[T]) -> T:
    """The body as an object of this class; None where None was asked for or nothing was answered."""
    if shape is type(None) or response.status_code == httpx.codes.NO_CONTENT:
        return None  # type: ignore[return-value]
    if shape is str:
        return response.text  # type: ignore[return-value]
    found = body_of(response)
    if not isinstance(found, dict):
        raise UnreadableAnswer(f"{response.request.url} answered a {type(found).__name__} and no object.")
    made = shape(found)  # type: ignore[call-arg]
    if isinstance(made, Record):
        made.etag = response.headers.get("etag")
    return made


def body_of(response: httpx.Response) -> Any:
    """The JSON of the body, its objects as records."""
    try:
        return json.loads(response.content, object_hook=Record)
    except ValueError as error:
        raise UnreadableAnswer(
            f"{response.request.url} answered no JSON: is this an Orchestrator?"
        ) from error
