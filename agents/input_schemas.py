"""Validates the parameters of work against the agent's JSON Schema."""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Iterable, Mapping
from functools import lru_cache
from itertools import islice
from typing import TYPE_CHECKING, Any
from uuid import UUID

import orjson

from agents import configuration
from tenants import wire_json
from tenants.lazy_import import lazy_import

if TYPE_CHECKING:
    import jsonschema  # type: ignore[import-untyped]  # comes without types
    import referencing
    import referencing.exceptions
else:
    jsonschema, referencing = lazy_import("jsonschema"), lazy_import("referencing")

logger = logging.getLogger(__name__)

MAX_ERRORS = 50  # more do not help anybody
LONGEST_MESSAGE = 500  # characters, because the messages quote values

#: With one of these keywords at the top of a schema, the validity of one parameter may depend on another.
_DEPENDING = {"allOf", "anyOf", "oneOf", "not", "if", "dependentSchemas", "dependentRequired", "$ref"}

#: An error of one of these keywords at the top of a schema remains, whatever parameters are added.
_LASTING = {"properties", "patternProperties", "additionalProperties", "propertyNames", "maxProperties"}

Violations = list[tuple[tuple[str | int, ...], str]]


def violations(
    tenant_id: UUID, role: str, params: Mapping[str, Any], *, unknown: Collection[str] = ()
) -> Violations:
    """Return each error with its path, which begins with `params`. Must run in a `tenant_scope`. Raises `RoleNotFound`.

    `unknown` are the names of further parameters whose values are not known yet. They are not validated.
    """
    schema = configuration.settings_for(tenant_id, role).input_schema
    if not schema or (unknown and _DEPENDING & schema.keys()):
        return []
    return [
        _describe_error(error)
        for error in _errors(role, schema, {**params, **dict.fromkeys(unknown)})
        if not error.absolute_path or error.absolute_path[0] not in unknown
    ]


def lasting_violations(tenant_id: UUID, role: str, params: Mapping[str, Any]) -> Violations:
    """Like `violations`, but only those that no additional parameter could fix."""
    schema = configuration.settings_for(tenant_id, role).input_schema
    errors = _errors(role, schema, params) if schema else []
    return [_describe_error(error) for error in errors if error.absolute_schema_path[0] in _LASTING]


def _errors(role: str, schema: Mapping[str, Any], params: Mapping[str, Any]) -> list[Any]:
    try:
        return list(islice(_validator(wire_json.dumps_stored(schema)).iter_errors(params), MAX_ERRORS))
    except _unusable() as error:
        # The error is in the registry, not in the caller's parameters, so it must not stop work.
        logger.warning(
            "Input schema unusable",
            extra={"action": "input_schema_unusable", "role": role, "reason": type(error).__name__},
        )
        return []


def _unusable() -> Any:
    """Return the exceptions that an invalid JSON Schema may cause, as a tuple."""
    return (jsonschema.SchemaError, referencing.exceptions.Unresolvable, re.error, TypeError, AttributeError)


def _describe_error(error: Any) -> tuple[tuple[str | int, ...], str]:
    path = [*error.absolute_path, *([missing_member(error)] if error.validator == "required" else ())]
    return ("params", *path), error.message[:LONGEST_MESSAGE]


def missing_member(error: Any) -> str:
    """Return the name of the member that an error of the keyword `required` is about; there is one error for each missing member."""
    names = (name for name in error.validator_value if error.message.startswith(repr(name)))
    return str(next(name for name in names if name not in error.instance))


def errors(tenant_id: UUID, role: str, params: Mapping[str, Any]) -> list[dict[str, str]]:
    """Like `violations`, with paths as text."""
    return [
        {"path": _path_text(path), "message": message}
        for path, message in violations(tenant_id, role, params)
    ]


def error_of(schema: Any) -> str | None:
    """Return why this is not a valid JSON Schema, or None. A $ref to another document is an error, because nothing is fetched."""
    try:
        for _ in islice(_validator(wire_json.dumps_stored(schema)).iter_errors({}), MAX_ERRORS):
            pass
    except jsonschema.SchemaError as error:
        path = _path_text(error.absolute_path)
        return f"is not a valid JSON Schema: {f'{path}: ' if path else ''}{error.message}"[:LONGEST_MESSAGE]
    except (*_unusable(), RecursionError) as error:
        return f"is not a usable JSON Schema: {type(error).__name__}: {error}"[:LONGEST_MESSAGE]
    return None


def _path_text(path: Iterable[str | int]) -> str:
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).removeprefix(".")


@lru_cache(maxsize=256)
def _validator(text: bytes) -> Any:
    """Raises `jsonschema.SchemaError`."""
    schema = orjson.loads(text)
    kind = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
    kind.check_schema(schema)
    # With an empty registry, a $ref to another document is refused instead of fetched.
    return kind(schema, registry=referencing.Registry())
