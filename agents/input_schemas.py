"""What an agent's own JSON Schema says about the parameters that it is to be given."""

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

MOST_FAULTS = 50  # more help nobody
LONGEST_MESSAGE = 500  # characters; the messages quote what they are about

#: A schema with one of these at its top may judge one parameter by another.
_DEPENDING = {"allOf", "anyOf", "oneOf", "not", "if", "dependentSchemas", "dependentRequired", "$ref"}

#: What one of these at the top of a schema refuses is refused whatever else is given.
_LASTING = {"properties", "patternProperties", "additionalProperties", "propertyNames", "maxProperties"}

Violations = list[tuple[tuple[str | int, ...], str]]


def violations(
    tenant_id: UUID, role: str, params: Mapping[str, Any], *, unknown: Collection[str] = ()
) -> Violations:
    """Each fault with the path to it, beginning with `params`. In the caller's `tenant_scope`. Raises `RoleNotFound`.

    `unknown` are parameters that are given as well, of which nobody knows yet what they are: nothing is said about these.
    """
    schema = configuration.settings_for(tenant_id, role).input_schema
    if not schema or (unknown and _DEPENDING & schema.keys()):
        return []
    found = _errors(role, schema, {**params, **dict.fromkeys(unknown)})
    return [
        _describe_error(error)
        for error in found
        if not error.absolute_path or error.absolute_path[0] not in unknown
    ]


def lasting_violations(tenant_id: UUID, role: str, params: Mapping[str, Any]) -> Violations:
    """As `violations`, of those alone that no further parameter could mend."""
    schema = configuration.settings_for(tenant_id, role).input_schema
    found = _errors(role, schema, params) if schema else []
    return [_describe_error(error) for error in found if error.absolute_schema_path[0] in _LASTING]


def _errors(role: str, schema: Mapping[str, Any], params: Mapping[str, Any]) -> list[Any]:
    try:
        return list(islice(_validator(wire_json.dumps_stored(schema)).iter_errors(params), MOST_FAULTS))
    except _unusable() as error:
        # The mistake is the registry's, not the caller's: work must not stop for it.
        logger.warning(
            "Input schema unusable",
            extra={"action": "input_schema_unusable", "role": role, "reason": type(error).__name__},
        )
        return []


def _unusable() -> Any:
    """The errors that come of using a JSON Schema that is none, as a tuple."""
    return (jsonschema.SchemaError, referencing.exceptions.Unresolvable, re.error, TypeError, AttributeError)


def _describe_error(error: Any) -> tuple[tuple[str | int, ...], str]:
    return ("params", *error.absolute_path), error.message[:LONGEST_MESSAGE]


def errors(tenant_id: UUID, role: str, params: Mapping[str, Any]) -> list[dict[str, str]]:
    """As `violations`, with paths as text."""
    return [
        {"path": _show_path(path), "message": message}
        for path, message in violations(tenant_id, role, params)
    ]


def error_of(schema: Any) -> str | None:
    """What is wrong with this as a JSON Schema, or None. A $ref to somewhere else is an error: nothing is fetched."""
    try:
        for _ in islice(_validator(wire_json.dumps_stored(schema)).iter_errors({}), MOST_FAULTS):
            pass
    except jsonschema.SchemaError as error:
        place = _show_path(error.absolute_path)
        return f"is not a valid JSON Schema: {f'{place}: ' if place else ''}{error.message}"[:LONGEST_MESSAGE]
    except (*_unusable(), RecursionError) as error:
        return f"is not a usable JSON Schema: {type(error).__name__}: {error}"[:LONGEST_MESSAGE]
    return None


def _show_path(path: Iterable[str | int]) -> str:
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).removeprefix(".")


@lru_cache(maxsize=256)
def _validator(text: bytes) -> Any:
    """Raises `jsonschema.SchemaError`."""
    schema = orjson.loads(text)
    kind = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
    kind.check_schema(schema)
    # With a registry of its own, a $ref to somewhere else is refused instead of fetched.
    return kind(schema, registry=referencing.Registry())
