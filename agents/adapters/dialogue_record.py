"""The transcript of a dialogue with a model: one JSON object per line, kept as those of command-line agents are.

A disk that is full, or not there, never ends a dialogue: then there is no transcript, and a warning.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import orjson

from agents import excerpts
from agents.command_line import transcripts
from agents.command_line.transcripts import Transcript
from agents.contracts import AgentRequest

logger = logging.getLogger(__name__)


class Record:
    """Written as the dialogue goes on. What it takes is what `dialogue` has: a `Said`, an `Asked`, a `ToolAnswer`."""

    def __init__(self, transcript: Transcript | None) -> None:
        self._transcript = transcript

    def told(self, text: str) -> None:
        self._write({"role": "user", "content": text})

    def said(self, said: Any) -> None:
        asked = [{"id": each.id, "name": each.name, "arguments": each.arguments} for each in said.asked]
        usage = {"input_tokens": said.input_tokens, "output_tokens": said.output_tokens, "model": said.model}
        self._write(
            {"role": "assistant", "content": said.text, "tools": asked, "ended": said.ended, "usage": usage}
        )

    def answered(self, asked: Any, answer: Any) -> None:
        told = {"tool": asked.name, "id": asked.id, "refused": answer.refused, "content": answer.body}
        self._write({"role": "tool", **told})

    def _write(self, line: dict[str, Any]) -> None:
        if self._transcript is not None:
            self._transcript.output(orjson.dumps(line, default=str) + b"\n")


@contextmanager
def kept(request: AgentRequest) -> Iterator[Record]:
    """Begins with what the model is told."""
    try:
        transcript = transcripts.begin(
            request.tenant_id, request.run_id, secrets=excerpts.secrets_of(request)
        )
    except OSError as error:
        facts = {"action": "no_transcript", "run": str(request.run_id), "error": type(error).__name__}
        logger.warning("No transcript is kept", extra=facts)
        yield Record(None)
        return
    record = Record(transcript)
    try:
        record.told(request.prompt)
        yield record
    finally:
        transcript.close()
