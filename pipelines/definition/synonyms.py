"""Translates synonyms: other spellings of the members of pipelines, schedules and agents that are accepted as input.

Other schedulers use these camelCase names, so their documents can be loaded unchanged. The rest of the code, and every response, uses
our own names. Errors still have the path that the caller wrote.

Numbers are converted where the unit or the meaning differs: `delay` and `timeout` are in milliseconds, `maxRetries` excludes the first
attempt, and a priority of 0 means that none is set. A value of the wrong kind is left unchanged, so that its reader reports it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from pipelines.definition.errors import InputError, at
from pipelines.graph import UpstreamFailure

LARGEST = 2**53  # up to here every whole number is exact as a float


@dataclass(frozen=True, slots=True)
class Synonym:
    """A synonym of our member `name`. `note` explains in an error how our value was converted."""

    name: str
    convert: Callable[[Any], Any] = lambda value: value
    note: str = ""


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of object: its synonyms by their spelling, and the kinds of the objects and lists of objects in it."""

    synonyms: Mapping[str, Synonym]
    objects: Mapping[str, Kind] = field(default_factory=dict)  # by our name
    lists: Mapping[str, Kind] = field(default_factory=dict)
    complete: Callable[[Mapping[str, Any], dict[str, Any]], None] | None = None  # as written, as translated


@dataclass(frozen=True, slots=True)
class Translation:
    """A document in our spelling. `data` shares its unchanged parts with the original."""

    data: Any
    errors: list[InputError]  # members that are present in both spellings
    _written: Mapping[str, tuple[str, str]]  # our path: the path as it was written, and a note on the value

    def as_written(self, errors: Iterable[InputError]) -> list[InputError]:
        """Return the errors at the paths that the caller wrote, after those of the translation itself."""
        return [*self.errors, *map(self._restore, errors)]

    def _restore(self, error: InputError) -> InputError:
        head = error.path
        while head and head not in self._written:
            head = head[: max(head.rfind("."), head.rfind("["), 0)]
        if not head:
            return error
        path, note = self._written[head]
        message = f"{error.message} ({note})" if note and head == error.path else error.message
        return replace(error, path=path + error.path[len(head) :], message=message)


def translate(data: Any, kind: Kind) -> Translation:
    """Return `data` in our spelling, without changing it. Never raises: a value that is not an object is returned unchanged."""
    errors: list[InputError] = []
    written: dict[str, tuple[str, str]] = {}
    return Translation(_object(data, kind, "", "", errors, written), errors, written)


def _object(
    data: Any,
    kind: Kind,
    ours: str,
    theirs: str,
    errors: list[InputError],
    written: dict[str, tuple[str, str]],
) -> Any:
    """`ours` and `theirs` are the path of `data` in our spelling and in the caller's."""
    if not isinstance(data, Mapping):
        return data
    members: dict[Any, Any] = {}
    for key, value in data.items():
        synonym = kind.synonyms.get(key) if isinstance(key, str) else None
        name = synonym.name if synonym else key
        if name != key and name in data:
            errors.append(
                InputError(at(theirs, key), f"is another spelling of {name}, which is present as well")
            )
            continue
        place, path = (at(ours, name), at(theirs, key)) if isinstance(key, str) else ("", "")
        if place != path:
            written[place] = (path, synonym.note if synonym else "")
        if synonym:
            value = synonym.convert(value)
        if name in kind.objects:
            value = _object(value, kind.objects[name], place, path, errors, written)
        elif name in kind.lists and isinstance(value, list | tuple):
            value = [
                _object(item, kind.lists[name], at(place, index), at(path, index), errors, written)
                for index, item in enumerate(value)
            ]
        members[name] = value
    if kind.complete:
        kind.complete(data, members)
    return members


def _is_number(value: Any) -> bool:
    """Whether this can be converted; a number beyond these bounds is left for its reader to refuse."""
    return isinstance(value, int | float) and not isinstance(value, bool) and -LARGEST < value < LARGEST


def _seconds(milliseconds: Any) -> Any:
    return milliseconds / 1000 if _is_number(milliseconds) else milliseconds


def _round_up_to_seconds(milliseconds: Any) -> Any:
    """Round up, so that nothing gets less time than requested."""
    return -(-milliseconds // 1000) if _is_number(milliseconds) else milliseconds


def _unless_zero(priority: Any) -> Any:
    return None if _is_number(priority) and priority == 0 else priority


def _default_to_continue(written: Mapping[str, Any], step: dict[str, Any]) -> None:
    """Pipelines in this spelling continue with partial results unless a step says otherwise."""
    if "agentId" in written and step.get("template") is None and step.get("on_upstream_failure") is None:
        step["on_upstream_failure"] = UpstreamFailure.CONTINUE.value


RETRY = Kind(
    {
        "maxRetries": Synonym(
            "max_attempts",
            lambda retries: retries + 1 if _is_number(retries) else retries,
            "as max_attempts, which counts the first try as well",
        ),
        "backoff": Synonym("strategy"),
        "delay": Synonym("base_seconds", _seconds, "as base_seconds, from milliseconds"),
    }
)
STEP = Kind(
    {
        "stepId": Synonym("id"),
        "agentId": Synonym("agent_role"),
        "dependsOn": Synonym("depends_on"),
        "retryConfig": Synonym("retry"),
        "timeout": Synonym("timeout_seconds", _seconds, "as timeout_seconds, from milliseconds"),
        "priority": Synonym("priority", _unless_zero),
    },
    objects={"retry": RETRY},
    complete=_default_to_continue,
)
PIPELINE = Kind({}, lists={"steps": STEP})
SCHEDULE = Kind(
    {
        "cronExpression": Synonym("cron"),
        "interval": Synonym("interval_ms"),
        "startAt": Synonym("start_at"),
        "targetType": Synonym("target_type"),
        "agentId": Synonym("agent_role"),
        "pipelineId": Synonym("pipeline"),
        "retryConfig": Synonym("retry"),
        "timeout": Synonym("timeout_seconds", _round_up_to_seconds, "as timeout_seconds, from milliseconds"),
        "priority": Synonym("priority", _unless_zero),
    },
    objects={"retry": RETRY},
)
AGENT = Kind({"agentId": Synonym("role"), "inputSchema": Synonym("input_schema")})
