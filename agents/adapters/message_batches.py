"""Message Batches: sends many requests in one call at a reduced price; the provider answers them later.

The protocol is implemented here without a vendor's library, so the code that follows batches needs none. The answer to a batch's creation
contains its id. When that answer is lost, the list of batches shows what was created, and the `custom_id` of each result shows the request
that it belongs to. This module repeats no calls. The provider limits batches separately, so they have a separate governor.
"""

from __future__ import annotations

import logging
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import IO, Any
from uuid import uuid4

import orjson

from agents import outbound
from agents.adapters import dialogue
from agents.adapters.dialogue import ModelAnswer, ModelOptions, ToolRequest
from agents.adapters.provider_errors import error_of_refusal, invalid
from agents.contracts import Completed, Usage
from agents.exceptions import AgentError, RetryableAgentError
from agents.governor import Call, Governor
from agents.governor.calling import ProviderFeedback, govern_call
from agents.governor.limits import Profile
from agents.governor.providers import Provider
from tenants import strict_json

logger = logging.getLogger(__name__)

VERSION = "2023-06-01"
MOST_REQUESTS = 100_000  # in one batch, a limit of the protocol
CALL_SECONDS = 60.0
RESULTS_SECONDS = 600.0
ANSWER_BYTES = 1_000_000  # of any answer except results
IN_MEMORY_BYTES = 8_000_000  # larger results are stored in a file
PAGE = 100
MOST_PAGES = 20

ENDS = {
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "refusal": "refused",
    "tool_use": "tools",
}
_CUSTOM_ID = re.compile(rb'"custom_id"\s*:\s*"([A-Za-z0-9_-]{1,64})"')  # in a line that may be no JSON
_UNANSWERED = {
    "expired": ("The provider's batch expired before it answered this request.", "batch_expired"),
    "canceled": ("The provider's batch was cancelled before it answered this request.", "batch_canceled"),
}


@dataclass(frozen=True, slots=True)
class Batch:
    id: str
    status: str  # in_progress, canceling or ended
    requests: int
    created_at: datetime


@dataclass(frozen=True, slots=True)
class Answer:
    """The result of one request: a message of the model, or the error of the agent."""

    custom_id: str
    message: Mapping[str, Any] | None
    error: AgentError | None


@dataclass(frozen=True, slots=True)
class MessageBatches:
    """The batches at one provider under one credential. Every call raises the matching `AgentError` on failure."""

    provider: Provider

    def create(self, requests: Sequence[tuple[str, Mapping[str, Any]]]) -> Batch:
        """Send a batch. Each request has a unique id of at most 64 letters, digits, hyphens and underscores."""
        listed = [{"custom_id": name, "params": dict(body)} for name, body in requests]
        return self._batch(self._call("POST", "", orjson.dumps({"requests": listed})))

    def fetch(self, batch_id: str) -> Batch:
        return self._batch(self._call("GET", f"/{batch_id}"))

    def cancel(self, batch_id: str) -> Batch:
        """Ask the provider to cancel the batch. Requests that it has begun may still be answered."""
        return self._batch(self._call("POST", f"/{batch_id}/cancel", b"{}"))

    def list_created(self, *, since: datetime) -> Iterator[Batch]:
        """Yield the batches that were created since then, newest first."""
        after = ""
        for _ in range(MOST_PAGES):
            page = self._call("GET", f"?limit={PAGE}{after}")
            for row in page.get("data") or ():
                batch = self._batch(row)
                if batch.created_at < since:
                    return
                yield batch
            if not page.get("has_more") or not page.get("last_id"):
                return
            after = f"&after_id={page['last_id']}"

    def answers(self, batch_id: str, *, max_bytes: int) -> Iterator[Answer]:
        """Yield the answers of an ended batch, in any order. All are fetched before the first is returned, so that the provider does not
        wait for the caller. Answers beyond `max_bytes` are left out, because fetching them again would not make them smaller.
        """
        with tempfile.SpooledTemporaryFile(max_size=IN_MEMORY_BYTES) as file:
            self._fetch(f"{self._url}/{batch_id}/results", file, max_bytes)
            file.seek(0)
            for line in file:
                if line.strip():
                    yield self._answer(line)

    @property
    def _url(self) -> str:
        return f"{self.provider.base_url.rstrip('/')}/v1/messages/batches"

    def _call(self, method: str, path: str, body: bytes | None = None) -> Any:
        with self._govern(CALL_SECONDS) as feedback:
            response = outbound.send(
                method, f"{self._url}{path}", headers=self._headers, body=body, deadline_seconds=CALL_SECONDS, max_bytes=ANSWER_BYTES,
            )  # fmt: skip
            feedback.headers = response.headers
            return self._read(response.status, response.body, response.headers)

    def _fetch(self, url: str, file: IO[bytes], max_bytes: int) -> None:
        client = outbound.client_for_vendor({**self._headers, "Accept": "application/binary"})
        with (
            self._govern(RESULTS_SECONDS) as feedback,
            outbound.call_budget(RESULTS_SECONDS, max_bytes),
            outbound.plain_errors(url, RESULTS_SECONDS),
            client.stream("GET", url) as response,
        ):
            feedback.headers = dict(response.headers)
            if response.status_code != 200:
                self._read(response.status_code, response.read(), feedback.headers)
            for part in response.iter_bytes():
                file.write(part)
                if file.tell() > max_bytes:
                    logger.warning(
                        "Results of a batch are too large",
                        extra={"action": "batch_results_cut", "provider": self.provider.name},
                    )
                    return

    @property
    def _headers(self) -> dict[str, str]:
        return {
            **self.provider.headers,
            "anthropic-version": VERSION,
            "Content-Type": "application/json",
            "Accept": "application/json",
        }

    @contextmanager
    def _govern(self, seconds: float) -> Iterator[ProviderFeedback]:
        governor = Governor(f"{self.provider.key}|batches", Profile())
        call = Call(f"batches:{uuid4()}", seconds, 0, 0, urgent=False)
        with govern_call(self.provider, call, governor=governor) as feedback:
            feedback.input_tokens = feedback.output_tokens = 0
            yield feedback

    def _read(self, status: int, body: bytes, headers: Mapping[str, str]) -> Any:
        try:
            answer = orjson.loads(body)
        except orjson.JSONDecodeError as error:
            if status == 200:
                raise invalid(self.provider, "no JSON") from error
            answer = None
        if status != 200:
            inner = answer.get("error") if isinstance(answer, dict) else None
            text = inner.get("message") if isinstance(inner, dict) else body.decode("utf-8", "replace")
            # A status below 400 other than 200 is neither an answer nor a refusal, so it counts as 500.
            raise error_of_refusal(status if status >= 400 else 500, text, answer, headers, self.provider)
        if not isinstance(answer, dict):
            raise invalid(self.provider, "no JSON object")
        return answer

    def _batch(self, row: Any) -> Batch:
        try:
            counts = row["request_counts"]
            return Batch(
                id=str(row["id"])[:100],
                status=str(row["processing_status"]),
                requests=sum(int(number) for number in counts.values()),
                created_at=_aware(datetime.fromisoformat(row["created_at"])),
            )
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise invalid(self.provider, error) from error

    def _answer(self, line: bytes) -> Answer:
        """Read one line. If it is invalid, only its own request has failed. The id is empty if the line has none."""
        found = _CUSTOM_ID.search(line)
        name = found[1].decode() if found else ""
        try:
            row = orjson.loads(line)
            name, result = str(row["custom_id"]), row["result"]
            kind = str(result["type"])
            if kind == "succeeded":
                answer_from(result["message"])
                return Answer(name, result["message"], None)
            if kind in _UNANSWERED:
                message, code = _UNANSWERED[kind]
                return Answer(name, None, RetryableAgentError(message, code=code))
            failure = result["error"]
            inner = failure.get("error") or failure
            return Answer(name, None, error_of_refusal(0, inner.get("message"), failure, {}, self.provider))
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            return Answer(name, None, invalid(self.provider, error))


def answer_from(message: Mapping[str, Any]) -> ModelAnswer:
    """Read a message of the model. Tokens from the cache do not count against its limits.

    Raises `LookupError`, `TypeError` or `AttributeError` for anything that is not a message.
    """
    usage, blocks, model = message["usage"], message["content"], message.get("model")
    written, read = usage.get("cache_creation_input_tokens") or 0, usage.get("cache_read_input_tokens") or 0
    if any(
        type(count) is not int for count in (usage["input_tokens"], usage["output_tokens"], written, read)
    ):
        raise TypeError("a number of tokens is not a whole number")
    if not isinstance(model, str | None):
        raise TypeError("the name of the model is not text")
    tool_uses = [(block, block.get("input")) for block in blocks if block["type"] == "tool_use"]
    return ModelAnswer(
        text="".join(block["text"] for block in blocks if block["type"] == "text"),
        tool_requests=[
            ToolRequest(block["id"], block["name"], arguments if isinstance(arguments, dict) else None)
            for block, arguments in tool_uses
        ],
        ended=ENDS.get(message["stop_reason"], "done"),
        input_tokens=usage["input_tokens"] + written + read, output_tokens=usage["output_tokens"],
        limited_input=usage["input_tokens"] + written, model=model,
    )  # fmt: skip


def read_completed(message: Mapping[str, Any], options: Mapping[str, Any]) -> Completed | None:
    """Return the result of a message, or None when the conversation must continue: it calls tools, or is not the requested JSON.

    `options` are the role's. Raises the matching `AgentError` for an answer that is not a result.
    """
    answer = answer_from(message)
    if answer.tool_requests:
        return None
    try:
        return Completed(dialogue.output_of(answer, ModelOptions.of(options)), usage_of(message))
    except strict_json.StrictJSONError:
        return None


def usage_of(message: Mapping[str, Any]) -> Usage:
    answer = answer_from(message)
    return Usage(answer.input_tokens, answer.output_tokens, model=answer.model, in_batch=True)


def _aware(moment: datetime) -> datetime:
    if moment.tzinfo is None:
        raise ValueError("a time without a zone")
    return moment
