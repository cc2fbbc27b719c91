"""Synonyms: other spellings of pipelines, schedules and agents that are accepted on the way in.

They are the names under which schedulers in camelCase keep the same things, so that such a document can be loaded as it is. Everything
behind this module, and every answer, has our own spelling. An error is still named by the path that the caller wrote.

Numbers are converted where the unit or the meaning differs: `delay` and `timeout` are milliseconds, `maxRetries` counts the tries after
the first one, and a priority of 0 says that none is set. A value of the wrong kind is passed on as it is: it is reported where it is read.
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
    """Another name of our member `name`. `note` says in an error how our value follows from the one that was written."""

    name: str
    convert: Callable[[Any], Any] = lambda value: value
    note: str = ""


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of object: its synonyms by the name that is written, and the kinds of the objects and lists of objects in it."""

    synonyms: Mapping[str, Synonym]
    objects: Mapping[str, Kind] = field(default_factory=dict)  # by our name
    lists: Mapping[str, Kind] = field(default_factory=dict)
    complete: Callable[[Mapping[str, Any], dict[str, Any]], None] | None = None  # as written, as translated


@dataclass(frozen=True, slots=True)
class Translation:
    """A document in our spelling. `data` shares with the original whatever did not have to be changed."""

    data: Any
    errors: list[InputError]  # what is given in both spellings
    _written: Mapping[str, tuple[str, str]]  # our path: the path as it was written, and a note on the value

    def as_written(self, errors: Iterable[InputError]) -> list[InputError]:
        """The same errors at the paths that the caller wrote, after those of the translation itself."""
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
    """`data` in our spelling. Never raises: anything that is not an object of this kind is returned as it is. Changes nothing in `data`."""
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
    found: dict[Any, Any] = {}
    for key, value in data.items():
        synonym = kind.synonyms.get(key) if isinstance(key, str) else None
        name = synonym.name if synonym else key
        if name != key and name in data:
            errors.append(
                InputError(at(theirs, key), f"is another spelling of {name}, which is given as well")
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
        found[name] = value
    if kind.complete:
        kind.complete(data, found)
    return found


def _is_number(value: Any) -> bool:
    """Whether it can be computed with; a number beyond these bounds is refused as it is."""
    return isinstance(value, int | float) and not isinstance(value, bool) and -LARGEST < value < LARGEST


def _seconds(milliseconds: Any) -> Any:
    return milliseconds / 1000 if _is_number(milliseconds) else milliseconds


def _round_up_to_seconds(milliseconds: Any) -> Any:
    """Rounded up: less time than was asked for would be wrong."""
    return -(-milliseconds // 1000) if _is_number(milliseconds) else milliseconds


def _attempts(retries: Any) -> Any:
    return retries + 1 if _is_number(retries) else retries


def _unless_zero(priority: Any) -> Any:
    return None if _is_number(priority) and priority == 0 else priority


def _go_on(written: Mapping[str, Any], step: dict[str, Any]) -> None:
    """A pipeline of this spelling goes on with partial results, unless a step says otherwise."""
    if "agentId" in written and step.get("template") is None and step.get("on_upstream_failure") is None:
        step["on_upstream_failure"] = UpstreamFailure.CONTINUE.value


RETRY = Kind(
    {
        "maxRetries": Synonym(
            "max_attempts", _attempts, "as max_attempts, which counts the first try as well"
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
    complete=_go_on,
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
