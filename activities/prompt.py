"""The prompt of a run: one template per wake reason, so the agent never guesses why it was started.

Text from outside (earlier outputs, notes, parameters) stands in blocks whose marker is random for each run, so no text can pretend that
its block has ended. The templates are ours; nothing from outside is ever compiled as a template.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import jinja2
from django.conf import settings
from jinja2.sandbox import ImmutableSandboxedEnvironment

LONGEST_BLOCK = 200_000  # Characters of one outside text; the rest is cut and says so.


def build(
    *,
    reason: str,
    name: str,
    description: str,
    params: Mapping[str, Any],
    input_content: str | None,
    context: Mapping[str, Any],
) -> str:
    """Render the prompt. `context` holds the wake's payload, e.g. `rejected_output` and `reviewer_notes`."""
    template = _environment(str(settings.BASE_DIR / "templates" / "prompts")).get_template(f"{reason}.md")
    return template.render(
        name=name,
        description=description,
        params=params,
        input_content=input_content,
        context=context,
        block=_Blocks(secrets.token_hex(8)),
    )


class _Blocks:
    """Wraps outside text for one prompt."""

    def __init__(self, marker: str) -> None:
        self.marker = marker

    def __call__(self, title: str, text: str | None) -> str:
        body = text or ""
        if len(body) > LONGEST_BLOCK:
            body = f"{body[:LONGEST_BLOCK]}\n[{len(body) - LONGEST_BLOCK} further characters left out]"
        return f"<<{title} {self.marker}>>\n{body}\n<<end of {title} {self.marker}>>"


@cache
def _environment(folder: str) -> jinja2.Environment:
    environment = ImmutableSandboxedEnvironment(
        loader=jinja2.FileSystemLoader(Path(folder)),
        undefined=jinja2.StrictUndefined,
        autoescape=False,  # plain text for a model, shown nowhere as HTML
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.policies["json.dumps_kwargs"] = {"ensure_ascii": False, "indent": 2, "default": str}
    return environment
