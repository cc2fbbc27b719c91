"""Definitions as text that a person would write: in the order of the fields, short lists on one line, long texts as blocks.

What is written here reads back as the same data, by the rules of `pipelines.definition.load`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import yaml

from pipelines.definition import StepDefinition

_WHOLE = ("key", "name", "description", "params")
_ORDER = tuple(part.name for part in fields(StepDefinition))
_UNSAID = StepDefinition(id="").to_dict()


def as_yaml(definition: Mapping[str, Any]) -> str:
    """A stored definition, without what goes without saying."""
    steps = [_tidy(step, is_first=index == 0) for index, step in enumerate(definition["steps"])]
    whole = {name: definition[name] for name in _WHOLE if definition.get(name)} | {"steps": steps}
    return _dumped(whole)


def as_written(data: Mapping[str, Any]) -> str:
    """A definition as somebody is writing it: everything that is there, right or wrong, in the usual order."""
    ordered = _in_order(data, (*_WHOLE, "steps"))
    if isinstance(data.get("steps"), list):
        ordered["steps"] = [
            _in_order(step, _ORDER) if isinstance(step, Mapping) else step for step in data["steps"]
        ]
    return _dumped(ordered)


def _in_order(data: Mapping[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    known = {name: data[name] for name in names if name in data}
    return known | {name: value for name, value in data.items() if name not in known}


def _tidy(step: Mapping[str, Any], *, is_first: bool) -> dict[str, Any]:
    # A step without `depends_on` runs after the one before it, so only the first may leave out that it depends on nothing.
    needless = {name for name in _ORDER if name != "depends_on" and step.get(name) == _UNSAID.get(name)}
    if is_first and not step.get("depends_on"):
        needless.add("depends_on")
    return {name: step[name] for name in _ORDER if name in step and name not in needless}


def _dumped(data: Mapping[str, Any]) -> str:
    text: str = yaml.dump(data, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100)
    return text


class _Dumper(yaml.SafeDumper):
    """Lists of short words on one line, as in `depends_on: [research, brief]`."""

    def represent_sequence(
        self, tag: str, sequence: Any, flow_style: bool | None = None
    ) -> yaml.SequenceNode:
        plain = all(isinstance(item, str) for item in sequence)
        return super().represent_sequence(tag, sequence, flow_style=plain or flow_style)

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, False)

    def ignore_aliases(self, data: Any) -> bool:
        return True


# YAML 1.2 reads some of these as numbers that the dumper, which knows 1.1, would leave without quotes.
_LIKE_A_NUMBER = re.compile(r"[-+.]?[0-9][0-9eE.+-]*")


def _text(dumper: _Dumper, text: str) -> yaml.ScalarNode:
    style = "'" if _LIKE_A_NUMBER.fullmatch(text) else "|" if "\n" in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _text)
