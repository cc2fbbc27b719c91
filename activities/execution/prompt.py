"""Renders the prompt of a run. There is one template per wake reason, so the agent never has to guess why it was started.

Each wake of the run has a section, oldest first. The newest wake decides the rest of the prompt.

Text from outside (parameters, the client's context, earlier outputs, notes) is put into blocks. Their marker is random for each prompt and
occurs nowhere else in it, so no text can pretend to end its block. Text from outside is never compiled as a template.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import jinja2
import orjson
from django.conf import settings
from jinja2.sandbox import ImmutableSandboxedEnvironment

from agents import prompt_blocks
from agents.contracts import ContextFile
from tenants import wire_json

LONGEST_BLOCK = 200_000  # Characters of one text from outside. Longer texts are cut, with a note.

#: The members of a wake that its section may use. Missing members are null.
_WAKE_MEMBERS = (
    *("rejected_output", "reviewer_notes"),
    *("blocker_type", "blocker_message", "blocker_resolution", "blocker_outcome"),
    *("subtask_name", "subtask_outcome", "subtask_output", "subtask_error", "subtask_notes"),
    *("review_approved", "reviewer_feedback", "outcome", "question", "approval", "approval_type", "title", "chosen_option"),
    *("kind", "source", "text", "content"),
)  # fmt: skip


def build(
    *,
    name: str,
    description: str,
    wakes: Sequence[Mapping[str, Any]],
    instructions: str = "",
    params: Mapping[str, Any] | None = None,
    context: Sequence[ContextFile] = (),
    inputs: Mapping[str, Any] | None = None,
    asked_by: str = "",
) -> str:
    """Render the prompt. `asked_by`: the role of the agent that wrote the task, whose text is put into blocks; else empty.

    `inputs`: the output of the previous step, `{content, data}`, or those of several steps by name in `steps`. `wakes`: the wakes of the
    run, oldest first and at least one. Each has its reason and the members of its payload; `rejected_output` and `subtask_output` are
    outputs.
    """
    facts = {
        "name": _line(name), "description": description.strip(), "asked_by": asked_by, "instructions": instructions.strip(),
        "params": as_json(params) if params else "", "context": [(_line(file.name), file.content) for file in context],
        "outputs": _outputs(inputs), "wakes": [_show_wake(wake) for wake in wakes],
    }  # fmt: skip
    template = _environment(str(settings.BASE_DIR / "templates" / "prompts")).get_template("base.md")
    while True:
        block = _Blocks(secrets.token_hex(8))
        text = template.render(facts, block=block)
        if text.count(block.marker) == 2 * block.count:
            return text


class _Blocks:
    """Wraps outside text for one prompt."""

    def __init__(self, marker: str) -> None:
        self.marker = marker
        self.count = 0

    def __call__(self, title: str, text: str) -> str:
        self.count += 1
        if len(text) > LONGEST_BLOCK:
            text = f"{text[:LONGEST_BLOCK]}\n[{len(text) - LONGEST_BLOCK} further characters left out]"
        return prompt_blocks.wrap_block(title, text, self.marker)


def as_json(value: Any) -> str:
    """Return indented JSON for a model to read. Non-ASCII letters are not escaped."""
    return wire_json.dumps_stored(
        value, default=str, option=orjson.OPT_INDENT_2 | orjson.OPT_NON_STR_KEYS
    ).decode()


def _line(text: str) -> str:
    """Join the text into one line, for a heading."""
    return " ".join(text.split())


def _show_wake(wake: Mapping[str, Any]) -> dict[str, Any]:
    """Return the members of a wake as text for its section."""
    members = {"reason": wake["reason"], **{name: wake.get(name) for name in _WAKE_MEMBERS}}
    for name in ("rejected_output", "subtask_output"):
        members[name] = [text for _, text in _texts(members[name] or {})]
    if not isinstance(members["content"], str | None):
        members["content"] = as_json(members["content"])  # may be any JSON value, such as a number
    return {name: as_json(value) if isinstance(value, dict) else value for name, value in members.items()}


def _outputs(inputs: Mapping[str, Any] | None) -> list[tuple[str, str, str]]:
    """Return (title, step, text) for each part of the output of one step, or of several steps."""
    steps: Mapping[str, Any] = (inputs or {}).get("steps") or {}
    lists = any("refs" in output for output in steps.values())
    # With a fan-out among the steps, the data of the whole repeats the data of the steps.
    own = {**(inputs or {}), "data": None} if lists else inputs or {}
    by_step = [("", own), *(part for step, output in steps.items() for part in _parts(step, output))]
    return [(title, _line(step), text) for step, output in by_step for title, text in _texts(output)]


def _parts(step: str, output: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any]]]:
    """Return the output of a step, or those of its branches, numbered from 1."""
    if "refs" not in output:
        return [(step, output)]
    branches = zip(output["content"], output["data"], strict=True)
    return [
        (f"{step}, part {number}", {"content": content, "data": data})
        for number, (content, data) in enumerate(branches, start=1)
    ]


def _texts(output: Mapping[str, Any]) -> list[tuple[str, str]]:
    content, data = output.get("content"), output.get("data")
    return [
        *([("Output", content)] if content else []),
        *([("Data", as_json(data))] if data is not None else []),
    ]


@cache
def _environment(folder: str) -> jinja2.Environment:
    return ImmutableSandboxedEnvironment(
        loader=jinja2.FileSystemLoader(Path(folder)),
        undefined=jinja2.StrictUndefined,
        autoescape=False,  # plain text for a model, never HTML
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        auto_reload=False,  # checking the files for changes would cost more than rendering them
    )
