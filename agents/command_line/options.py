"""What an operator has set for a command-line agent, in `options` of the registry, read by the letter.

Tenants cannot set any of it. An error is a `ConfigurationError` that names the option, so that a misspelt limit is not silently none.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from agents.exceptions import ConfigurationError

FORMATS = ("text", "json", "stream-json")
PLACEHOLDERS = frozenset(
    {
        "prompt_file", "job_file", "session_id", "model", "max_turns", "skills_dir", "work_dir", "repository", "role", "run_id",
        "activity_id", "mcp_config", "mcp_toml",
    }
)  # fmt: skip
#: What these kinds of end mean is that more of the same would end alike.
HOPELESS = ("error_max_turns", "error_max_budget_usd", "error_max_structured_output_retries")

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,99}")
_PLACE = re.compile(r"\{([a-z_]+)\}")

Part = str | tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Limits:
    """For the agent and all that it starts, each for itself. None: no limit."""

    memory_mb: int | None = None  # of address space; programs that reserve much and use little need much
    cpu_seconds: int | None = None
    nice: int = 0


@dataclass(frozen=True, slots=True)
class Options:
    """`command` is the program and its arguments; a list among them is left out where a value that it names is missing."""

    command: tuple[Part, ...]
    resume: tuple[str, ...] = ()
    prompt: str = "stdin"  # or "file"
    output: str = "text"
    credential_variable: str | None = None
    environment: tuple[str, ...] = ()  # names of the worker's variables that it gets as well
    variables: Mapping[str, str] = field(default_factory=dict)
    home: str = "own"  # "own": one folder for each tenant and role; "worker": the worker's
    session_invalid: re.Pattern[str] | None = None
    rate_limited: re.Pattern[str] | None = None
    retry_after_seconds: float = (
        60.0  # after a rate limit, whose end such a program does not tell in a known form
    )
    permanent_exit_codes: frozenset[int] = frozenset()
    permanent_errors: frozenset[str] = frozenset(HOPELESS)
    kill_grace_seconds: float = 5.0
    limits: Limits = field(default_factory=Limits)
    repository: str | None = None
    repositories: Mapping[str, str] = field(default_factory=dict)
    base: str = "HEAD"
    exclusive: bool = True
    mcp: bool = False  # the orchestrator's tools are offered as an MCP server


def read(options: Mapping[str, Any]) -> Options:
    """Raises `ConfigurationError` for the first error."""
    reader = _Reader(options)
    command = reader.command()
    found = Options(
        command=command,
        resume=reader.texts("resume"),
        prompt=reader.one_of("prompt", ("stdin", "file"), "stdin"),
        output=reader.one_of("output", FORMATS, "text"),
        credential_variable=reader.name("credential_variable"),
        environment=reader.names("environment"),
        variables=reader.variables(),
        home=reader.one_of("home", ("own", "worker"), "own"),
        session_invalid=reader.pattern("session_invalid"),
        rate_limited=reader.pattern("rate_limited"),
        retry_after_seconds=reader.number("retry_after_seconds", 60.0, 1.0, 86_400.0),
        permanent_exit_codes=reader.codes("permanent_exit_codes"),
        permanent_errors=frozenset(reader.texts("permanent_errors", HOPELESS)),
        kill_grace_seconds=reader.number("kill_grace_seconds", 5.0, 0.0, 60.0),
        limits=reader.limits(),
        repository=reader.text("repository"),
        repositories=reader.mapping("repositories"),
        base=reader.text("base") or "HEAD",
        exclusive=reader.flag("exclusive", True),
        mcp=reader.flag("mcp", False),
    )
    if found.prompt == "file" and not any("{prompt_file}" in text for text in _flat(command)):
        raise invalid("prompt", "is file, but no argument of the command names {prompt_file}")
    return found


def invalid(option: str, message: str) -> ConfigurationError:
    return ConfigurationError(f"The option {option} of this command-line agent {message}.")


def places_in(text: str) -> list[str]:
    """The placeholders in an argument."""
    return _PLACE.findall(text)


def _flat(command: tuple[Part, ...]) -> list[str]:
    return [text for part in command for text in ((part,) if isinstance(part, str) else part)]


#: An option that others read: the runaway guard.
_ELSEWHERE = frozenset({"starts_per_minute"})


class _Reader:
    def __init__(self, options: Mapping[str, Any]) -> None:
        self.given = options
        known = set(Options.__dataclass_fields__) | _ELSEWHERE
        if unknown := options.keys() - known:
            raise invalid(sorted(unknown)[0], "is not known")

    def command(self) -> tuple[Part, ...]:
        parts = self.given.get("command")
        if not isinstance(parts, list) or not parts or not isinstance(parts[0], str) or not parts[0]:
            raise invalid("command", "must be a list that begins with the program")
        for part in parts:
            texts = part if isinstance(part, list) else [part]
            if not all(isinstance(text, str) for text in texts):
                raise invalid("command", "must consist of texts and lists of texts")
            self._check_places("command", texts)
        if places_in(parts[0]):
            raise invalid("command", "must name its program without placeholders")
        return tuple(tuple(part) if isinstance(part, list) else part for part in parts)

    def texts(self, name: str, default: tuple[str, ...] = ()) -> tuple[str, ...]:
        found = self.given.get(name, list(default))
        if not isinstance(found, list) or not all(isinstance(text, str) for text in found):
            raise invalid(name, "must be a list of texts")
        self._check_places(name, found)
        return tuple(found)

    def names(self, name: str) -> tuple[str, ...]:
        found = self.texts(name)
        if not all(_NAME.fullmatch(text) for text in found):
            raise invalid(name, "must be a list of names of variables")
        return found

    def text(self, name: str) -> str | None:
        found = self.given.get(name)
        if found is not None and (not isinstance(found, str) or not found):
            raise invalid(name, "must be text")
        return found

    def name(self, name: str) -> str | None:
        found = self.text(name)
        if found is not None and not _NAME.fullmatch(found):
            raise invalid(name, "must be the name of a variable")
        return found

    def one_of(self, name: str, choices: tuple[str, ...], default: str) -> str:
        found = self.given.get(name, default)
        if found not in choices:
            raise invalid(name, f"must be one of {', '.join(choices)}")
        return str(found)

    def mapping(self, name: str) -> Mapping[str, str]:
        found = self.given.get(name, {})
        if not isinstance(found, dict) or not all(isinstance(value, str) for value in found.values()):
            raise invalid(name, "must be an object of texts")
        return found

    def variables(self) -> Mapping[str, str]:
        found = self.mapping("variables")
        if not all(_NAME.fullmatch(name) for name in found):
            raise invalid("variables", "must name variables")
        return found

    def pattern(self, name: str) -> re.Pattern[str] | None:
        found = self.text(name)
        try:
            return re.compile(found, re.IGNORECASE) if found else None
        except re.error as error:
            raise invalid(name, f"is no regular expression: {error}") from error

    def codes(self, name: str) -> frozenset[int]:
        found = self.given.get(name, [])
        if not isinstance(found, list) or not all(type(code) is int and 0 < code < 256 for code in found):
            raise invalid(name, "must be a list of exit codes from 1 to 255")
        return frozenset(found)

    def number(self, name: str, default: float, least: float, most: float) -> float:
        found = self.given.get(name, default)
        if isinstance(found, bool) or not isinstance(found, int | float) or not least <= found <= most:
            raise invalid(name, f"must be a number from {least:g} to {most:g}")
        return float(found)

    def flag(self, name: str, default: bool) -> bool:
        found = self.given.get(name, default)
        if not isinstance(found, bool):
            raise invalid(name, "must be true or false")
        return found

    def limits(self) -> Limits:
        found = self.given.get("limits", {})
        if not isinstance(found, dict) or found.keys() - {"memory_mb", "cpu_seconds", "nice"}:
            raise invalid("limits", "may have memory_mb, cpu_seconds and nice")
        for name, value in found.items():
            if type(value) is not int or not (0 <= value <= 19 if name == "nice" else value > 0):
                raise invalid(f"limits.{name}", "must be a whole number above 0, nice from 0 to 19")
        return Limits(**found)

    def _check_places(self, name: str, texts: list[str]) -> None:
        for text in texts:
            if unknown := set(places_in(text)) - PLACEHOLDERS:
                raise invalid(name, f"has the unknown placeholder {{{sorted(unknown)[0]}}}")
