"""Reads plans of a period, checks them against the available pipelines, and reports every error with its path.

Pure. The form is `plan_schema.json`, which the planner gets as a parameter.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agents.input_schemas import missing_member
from pipelines.definition.errors import Errors, InputError, at, path_of
from pipelines.exceptions import PipelineError
from tenants import strict_json
from tenants.lazy_import import lazy_import
from tenants.plain_names import error_of_name
from tenants.wire_json import moment_of

if TYPE_CHECKING:
    import jsonschema  # type: ignore[import-untyped]  # comes without types
else:
    jsonschema = lazy_import("jsonschema")

SCHEMA: Mapping[str, Any] = json.loads(Path(__file__).with_name("plan_schema.json").read_text("utf-8"))

MOST_ERRORS = 50
MOST_BYTES = 2**20  # of a plan in text
_NORMAL = 10

_KINDS = {
    "object": "an object", "array": "a list", "string": "text", "integer": "a whole number", "number": "a number",
    "boolean": "true or false",
}  # fmt: skip


class PlanInvalid(PipelineError):
    """The plan is invalid. `errors` lists everything that is wrong with it."""

    code = "invalid_plan"
    status = 400

    def __init__(self, errors: Iterable[InputError]) -> None:
        self.errors = list(errors)
        super().__init__("; ".join(map(str, self.errors)))


@dataclass(frozen=True, slots=True)
class Offer:
    """A pipeline that a plan may use. `params` are the defaults of its runs."""

    key: str
    name: str
    description: str = ""
    params: Mapping[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Return the form for the planner."""
        return {
            "key": self.key,
            "name": self.name,
            "description": self.description,
            "params": schema_of(self.params),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanItem:
    pipeline: str
    name: str = ""
    params: Mapping[str, Any] = field(default_factory=dict)
    input: Mapping[str, Any] | None = None
    priority: int = _NORMAL
    not_before: datetime | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """A valid plan. `document` is its source."""

    items: tuple[PlanItem, ...]
    document: Mapping[str, Any]


#: Takes the key of a pipeline and the parameters of several runs, and returns the errors of each.
ParamsCheck = Callable[[str, Sequence[Mapping[str, Any]]], Iterable[Iterable[InputError]]]


def read(
    data: Any,
    *,
    offered: Mapping[str, Offer],
    ends_at: datetime,
    errors_of_params: ParamsCheck = lambda key, params: [],
) -> Plan:
    """Read the plan in `data`. Raises `PlanInvalid` with every error. `ends_at` is the end of the period."""
    errors = Errors()
    for path, message in _errors_of_form(data, SCHEMA, ""):
        errors.add(path, message)
    if len(errors.found) < MOST_ERRORS:  # otherwise there may be more errors of form
        refused = {error.path for error in errors.found}
        params: dict[str, dict[str, Mapping[str, Any]]] = {}
        for path, item in _members_of_valid_form(data, refused):
            _check_item(item, path, offered, ends_at, errors)
            if item.get("pipeline") in offered and f"{path}.params" not in refused:
                params.setdefault(item["pipeline"], {})[path] = item.get("params", {})
        _check_params(params, errors_of_params, errors)
    if errors.found:
        raise PlanInvalid(errors.found[:MOST_ERRORS])
    return Plan(tuple(_item(item) for item in data["items"]), data)


_BLOCK = re.compile(
    r"^[ \t]*```[ \t]*(?:json)?[ \t]*\n(.*?)^[ \t]*```[ \t]*$", re.DOTALL | re.MULTILINE | re.IGNORECASE
)


def extract_plan(content: str) -> Any:
    """Return the plan in a model's text: JSON, alone or in one fenced block with text around it.

    Raises `PlanInvalid` if there is no plan, or more than one block.
    """
    blocks = [content] if content.strip()[:1] in ("{", "[") else _BLOCK.findall(content)
    if len(blocks) != 1:
        raise PlanInvalid([InputError("", _NO_PLAN if not blocks else _SEVERAL)])
    try:
        return strict_json.loads(
            blocks[0].encode(errors="replace"), max_bytes=MOST_BYTES, reject_duplicate_keys=True
        )
    except strict_json.StrictJSONError as error:
        raise PlanInvalid([InputError("", f"is not JSON: {error}")]) from error


_NO_PLAN = "must be an object: answer with `data`, or with JSON in `content`, alone or in one fenced block"
_SEVERAL = "must be one plan, but there are several fenced blocks"


def schema_of(defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Return a pipeline's parameters as a JSON Schema, with the type and the default of each."""
    return {
        "type": "object",
        "properties": {name: {**_kind_of(value), "default": value} for name, value in defaults.items()},
    }


def _members_of_valid_form(data: Any, refused: Collection[str]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the path of each item, and those of its members whose own paths are not refused."""
    items = data.get("items") if isinstance(data, Mapping) else None
    for index, item in enumerate(items if isinstance(items, list) else ()):
        path = f"items[{index}]"
        if isinstance(item, Mapping):
            yield path, {name: value for name, value in item.items() if at(path, name) not in refused}


def _check_item(
    item: Mapping[str, Any], path: str, offered: Mapping[str, Offer], ends_at: datetime, errors: Errors
) -> None:
    offer = offered.get(item.get("pipeline", ""))
    if "pipeline" in item and offer is None:
        errors.add_unknown(at(path, "pipeline"), "pipeline", item["pipeline"], offered)
    if offer is not None:
        for place, message in _errors_of_form(
            item.get("params", {}), schema_of(offer.params), f"{path}.params"
        ):
            errors.add(place, message)
    if "name" in item:
        problem = error_of_name(item["name"]) or (None if item["name"].strip() else "must not be blank")
        if problem:
            errors.add(at(path, "name"), problem)
    if "not_before" in item:
        moment = moment_of(item["not_before"])
        if moment is None:
            errors.add(at(path, "not_before"), "must be a time with its offset, such as 2026-05-01T09:30:00Z")
        elif moment >= ends_at:
            errors.add(
                at(path, "not_before"), f"must be before {ends_at:%Y-%m-%dT%H:%M:%SZ}, when the period ends"
            )


def _check_params(
    params: Mapping[str, Mapping[str, Mapping[str, Any]]], errors_of_params: ParamsCheck, errors: Errors
) -> None:
    """Check what the agents of each pipeline say about the parameters, which are given by the path of their item."""
    known = {error.path for error in errors.found}
    for key, by_path in params.items():
        for path, found in zip(by_path, errors_of_params(key, list(by_path.values())), strict=False):
            for error in found:
                if f"{path}.{error.path}" not in known:
                    errors.add(f"{path}.{error.path}", error.message)


def _item(item: Mapping[str, Any]) -> PlanItem:
    return PlanItem(
        pipeline=item["pipeline"],
        name=item.get("name", ""),
        params=item.get("params", {}),
        input=item.get("input"),
        priority=int(item.get("priority", _NORMAL)),
        not_before=moment_of(item["not_before"]) if "not_before" in item else None,
    )


def _errors_of_form(data: Any, schema: Mapping[str, Any], base: str) -> Iterator[tuple[str, str]]:
    validator = _plan_validator() if schema is SCHEMA else jsonschema.Draft202012Validator(schema)
    for error in islice(validator.iter_errors(data), MOST_ERRORS):
        yield from _describe_error(error, path_of(error.absolute_path, base))


@cache
def _plan_validator() -> Any:
    return jsonschema.Draft202012Validator(SCHEMA)


def _describe_error(error: Any, path: str) -> Iterator[tuple[str, str]]:
    """Yield the path and the message of a schema error. Messages quote no values."""
    limit, value = error.validator_value, error.instance
    match error.validator:
        case "additionalProperties":
            known = error.schema["properties"]
            yield from (
                (at(path, name), "is not a member of this object") for name in value if name not in known
            )
        case "required":
            yield at(path, missing_member(error)), "is missing"
        case "type":
            yield path, f"must be {_KINDS[limit]}"
        case "minimum" | "maximum":
            yield path, f"must be from {error.schema['minimum']} to {error.schema['maximum']}"
        case "minItems" | "minProperties":
            yield path, f"must have at least {limit} member"
        case "maxItems":
            yield path, f"must have at most {limit} members"
        case "minLength":
            yield path, "must not be empty"
        case _:
            yield path, f"must have at most {limit} characters"


def _kind_of(value: Any) -> dict[str, str]:
    """Return the type of a default as JSON Schema. Null can be of any type."""
    match value:
        case bool():
            return {"type": "boolean"}
        case int() | float():
            return {"type": "number"}
        case str():
            return {"type": "string"}
        case list():
            return {"type": "array"}
        case dict():
            return {"type": "object"}
    return {}
