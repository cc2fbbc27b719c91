"""The prompt of a run: one template per wake reason, so the agent never guesses why it was started.

Each wake of a run has its section, in the order in which they came; the newest decides what else the prompt says.

Text from outside (parameters, the client's context, earlier outputs, notes) stands in blocks whose marker is random for each prompt and
occurs nowhere else in it, so no text can pretend that its block has ended. The templates are ours; nothing from outside is ever compiled
as a template.
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

LONGEST_BLOCK = 200_000  # Characters of one outside text; the rest is cut and says so.

#: What a section may ask of its wake. A wake that does not have it says nothing about it.
_OF_A_WAKE = (
    *("rejected_output", "reviewer_notes"),
    *("blocker_type", "blocker_message", "blocker_resolution", "blocker_outcome"),
    *("subtask_name", "subtask_outcome", "subtask_output", "subtask_error"),
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
    """Render the prompt. `asked_by`: the role of the agent that wrote the task, whose words stand in blocks; empty for people and programs.

    `inputs` is the output of the step before, `{content, data}`; of several steps, such by their names in `steps`. `wakes` are those of the
    run, oldest first and at least one: the reason and the payload, in which `rejected_output` and `subtask_output` are outputs as well.
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
    """For a model to read: indented, and every letter as it is."""
    return wire_json.dumps_stored(
        value, default=str, option=orjson.OPT_INDENT_2 | orjson.OPT_NON_STR_KEYS
    ).decode()


def _line(text: str) -> str:
    """On one line, as a heading has to be."""
    return " ".join(text.split())


def _show_wake(wake: Mapping[str, Any]) -> dict[str, Any]:
    """A wake with everything that sections ask about, as text."""
    shown = {"reason": wake["reason"], **{name: wake.get(name) for name in _OF_A_WAKE}}
    for name in ("rejected_output", "subtask_output"):
        shown[name] = [text for _, text in _texts(shown[name] or {})]
    if not isinstance(shown["content"], str | None):
        shown["content"] = as_json(shown["content"])  # any JSON, a number as well
    return {name: as_json(value) if isinstance(value, dict) else value for name, value in shown.items()}


def _outputs(inputs: Mapping[str, Any] | None) -> list[tuple[str, str, str]]:
    """What an output consists of, or those of several steps: output or data, of which step, and the text."""
    steps: Mapping[str, Any] = (inputs or {}).get("steps") or {}
    lists = any("refs" in output for output in steps.values())
    # With lists among them, the data of the whole repeats what is told step by step.
    own = {**(inputs or {}), "data": None} if lists else inputs or {}
    by_step = [("", own), *(part for step, output in steps.items() for part in _parts(step, output))]
    return [(what, _line(step), text) for step, output in by_step for what, text in _texts(output)]


def _parts(step: str, output: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any]]]:
    """The output of a step; of one that was fanned out, those of its branches, counted from 1."""
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
        autoescape=False,  # plain text for a model, shown nowhere as HTML
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        auto_reload=False,  # they come with the code, and looking at their files would cost more than rendering them
    )
