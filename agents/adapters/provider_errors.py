"""Translates a provider's failures into `AgentError`s. Both vendors' libraries have the same exception classes, under the same names."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from agents import outbound, redaction
from agents.contracts import AgentRequest
from agents.exceptions import (
    AgentError,
    AgentRateLimited,
    ConfigurationError,
    PermanentAgentError,
    RetryableAgentError,
)
from agents.governor.calling import ProviderFeedback
from agents.governor.providers import Provider
from agents.outbound import client

_RETRYABLE = frozenset({408, 409, 425})  # and all from 500

#: An error inside a successful response has no status. Its type determines one.
_STATUSES = {
    "invalid_request_error": 400,
    "authentication_error": 401,
    "permission_error": 403,
    "not_found_error": 404,
    "request_too_large": 413,
    "rate_limit_error": 429,
    "rate_limit_exceeded": 429,
    "overloaded_error": 529,
}
#: A 429 for which waiting does not help, because the account has no credit.
_QUOTA = "insufficient_quota"


@contextmanager
def plain_errors(
    library: Any, *, request: AgentRequest, provider: Provider, feedback: ProviderFeedback
) -> Iterator[None]:
    """Translate the library's exceptions in this block into `AgentError`s, and record the headers of a refusal."""

    def refused(status: int, error: Any) -> AgentError:
        secrets = redaction.secrets_of(request)
        return error_of_refusal(
            status, error.message, error.body, feedback.headers, provider, secrets=secrets
        )

    try:
        with outbound.plain_errors(provider.base_url, request.timeout_seconds):
            yield
    except AgentError:
        raise
    except library.APIStatusError as error:
        feedback.headers = dict(error.response.headers)
        raise refused(error.status_code, error) from error
    except library.APIConnectionError as error:
        raise _unreachable(error, provider) from error
    except library.APIResponseValidationError as error:
        raise invalid(provider, error) from error
    except library.APIError as error:
        raise refused(200, error) from error
    except (ValueError, TypeError, LookupError, AttributeError, RuntimeError) as error:
        # The libraries do not validate what they receive, so an unexpected answer may fail anywhere in them.
        raise invalid(provider, error) from error


def invalid(provider: Provider, error: Exception | str) -> RetryableAgentError:
    """Return the error for an answer that cannot be read. The provider has probably failed, so a retry may help."""
    reason = error if isinstance(error, str) else type(error).__name__
    return RetryableAgentError(
        f"{provider.name} sent an invalid answer: {reason}", code="provider_answer_invalid"
    )


def interrupted(provider: Provider) -> RetryableAgentError:
    return RetryableAgentError(
        f"{provider.name} stopped in the middle of its answer.", code="agent_unreachable"
    )


def error_of_refusal(
    status: int,
    text: object,
    body: Any,
    headers: Mapping[str, str],
    provider: Provider,
    *,
    secrets: Iterable[str] = (),
) -> AgentError:
    """Return the error for an answer that is not a result. With a status below 400, the type of error in the body decides."""
    # The types and codes of the error, in either vendor's format.
    inner = body.get("error") if isinstance(body, Mapping) else None
    objects = [each for each in (inner, body) if isinstance(each, Mapping)]
    kinds = [str(each[name]) for each in objects for name in ("type", "code") if each.get(name)]
    if status < 400:
        status = next((_STATUSES[kind] for kind in kinds if kind in _STATUSES), 500)
    credentials = provider.headers.values()
    hidden = [*secrets, *credentials, *(value.removeprefix("Bearer ") for value in credentials)]
    message = f"{provider.name} answered with status {status}: {redaction.excerpt(str(text), secrets=hidden)}"
    wait = client.retry_after_seconds(headers.get("retry-after"))
    if status == 429 and _QUOTA in kinds:
        return PermanentAgentError(message, code="provider_quota")
    if status == 429:
        return AgentRateLimited(message, retry_after=wait)
    if status in _RETRYABLE or status >= 500:
        return RetryableAgentError(message, code="agent_error_status", retry_after=wait)
    if status in (401, 403):
        where = f"the role's credentials (auth), or {provider.key_setting}"
        return ConfigurationError(f"{message} Check {where}.")
    return PermanentAgentError(message)


def _unreachable(error: Exception, provider: Provider) -> AgentError:
    """Return the outbound policy's own error, if it ended the call, because the libraries wrap all errors from below."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, AgentError):
            return cause
        cause = cause.__cause__ or cause.__context__
    return RetryableAgentError(
        f"{provider.name} could not be reached: {error.__cause__ or error}", code="agent_unreachable"
    )
