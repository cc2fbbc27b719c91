"""Subjects and labels of runs, by which people tell the runs of one pipeline apart."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from tenants.plain_names import LONGEST_NAME, error_of_name, make_plain

PREFERRED_PARAMS = ("subject", "title", "topic", "name")  # the best parameters for a subject, in this order
LONGEST = 80  # characters of a parameter that can be a subject
LONGEST_VALUE = (
    5 * LONGEST_NAME
)  # of a parameter in a template; more than a name, because spaces between words do not count

MOST_LABELS: Final = 20
LONGEST_LABEL: Final = 63  # characters of its name

_PLACE = re.compile(r"\{\{\s*([A-Za-z_][A-Za-z0-9_-]*(?:\.[A-Za-z0-9_-]+)*)\s*\}\}")
_LABEL = re.compile(r"[a-z0-9]+(?:[._-][a-z0-9]+)*")


def subject_of(name: str, params: Any) -> str:
    """Return the run's name, else the first short text among its parameters, `PREFERRED_PARAMS` first; else an empty text."""
    if name:
        return name
    members = params if isinstance(params, Mapping) else {}
    values = [*(members[key] for key in PREFERRED_PARAMS if key in members), *members.values()]
    texts = (" ".join(value.split()) for value in values if isinstance(value, str))
    return next((text for text in texts if 0 < len(text) <= LONGEST), "")


def error_of_template(template: str) -> str | None:
    """Return why this is not a valid template of subjects, or None. It names parameters as `{{ topic }}` or `{{ client.name }}`."""
    rest = _PLACE.sub("", template)
    if "{{" in rest or "}}" in rest:
        return "may name a parameter as {{ topic }}, or a member of one as {{ client.name }}, but must have no other double braces"
    return None


def render(template: str, params: Mapping[str, Any]) -> str:
    """Return the subject of a run with these parameters: one line, cut to the length of a name. A missing parameter becomes empty."""
    # Long texts are cut before anything is done with them.
    text = _PLACE.sub(lambda place: _text_at(params, place[1])[:LONGEST_VALUE], template)
    return " ".join(make_plain(" ".join(text.split())[:LONGEST_NAME]).split())


def _text_at(params: Any, path: str) -> str:
    for part in path.split("."):
        params = params.get(part) if isinstance(params, Mapping) else None
    if params is None or isinstance(params, (Mapping, list)):
        return ""
    return str(params).lower() if isinstance(params, bool) else str(params)


def errors_of_labels(labels: Any) -> Iterator[tuple[str, str]]:
    """Yield the errors of a run's labels, each with the name of its label."""
    if not isinstance(labels, Mapping):
        yield "", "must be an object of texts"
        return
    if len(labels) > MOST_LABELS:
        yield "", f"must have at most {MOST_LABELS} members"
    for name, value in labels.items():
        if not isinstance(name, str) or len(name) > LONGEST_LABEL or not _LABEL.fullmatch(name):
            yield (
                str(name),
                f"the name of a label must have at most {LONGEST_LABEL} lower-case letters and digits, with single -, _ or . between them",
            )
        elif not isinstance(value, str) or not 0 < len(value.strip()) <= LONGEST_NAME:
            yield name, f"must be text of 1 to {LONGEST_NAME} characters"
        elif error := error_of_name(value):
            yield name, error
