"""Validates an operator's settings for a command-line agent, in `options` of the registry.

Tenants cannot set any of them. An error is a `ConfigurationError` that names the option, so that a misspelt limit is not silently ignored.
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
#: Errors of programs after which a retry would fail in the same way.
HOPELESS = ("error_max_turns", "error_max_budget_usd", "error_max_structured_output_retries")

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,99}")
_PLACEHOLDER = re.compile(r"\{([a-z_]+)\}")

Part = str | tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits for each process of the agent separately. None means no limit."""

    # Of address space, so programs that reserve much need a high limit even if they use little.
    memory_mb: int | None = None
    cpu_seconds: int | None = None
    nice: int = 0


@dataclass(frozen=True, slots=True)
class Options:
    """`command` is the program and its arguments. A list among them is omitted if a placeholder in it has no value."""

    command: tuple[Part, ...]
    resume: tuple[str, ...] = ()
    prompt: str = "stdin"  # or "file"
    output: str = "text"
    credential_variable: str | None = None
    environment: tuple[str, ...] = ()  # names of further variables that it gets from the worker
    variables: Mapping[str, str] = field(default_factory=dict)
    home: str = "own"  # "own": one folder for each tenant and role; "worker": the worker's
    session_invalid: re.Pattern[str] | None = None
    rate_limited: re.Pattern[str] | None = None
    # After a rate limit, because programs do not report its end in a known form.
    retry_after_seconds: float = 60.0
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
    """Return the validated options. Raises `ConfigurationError` for the first error."""
    reader = _Reader(options)
    command = reader.command()
    result = Options(
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
    texts = [text for part in command for text in ((part,) if isinstance(part, str) else part)]
    if result.prompt == "file" and not any("{prompt_file}" in text for text in texts):
        raise invalid("prompt", "is file, but no argument of the command names {prompt_file}")
    return result


def invalid(option: str, message: str) -> ConfigurationError:
    return ConfigurationError(f"The option {option} of this command-line agent {message}.")


def placeholders_in(text: str) -> list[str]:
    return _PLACEHOLDER.findall(text)


#: Options that other modules read: the runaway guard, budgets.
_READ_ELSEWHERE = frozenset({"starts_per_minute", "estimate_usd", "estimate_tokens"})


class _Reader:
    def __init__(self, options: Mapping[str, Any]) -> None:
        self.options = options
        known = set(Options.__dataclass_fields__) | _READ_ELSEWHERE
        if unknown := options.keys() - known:
            raise invalid(sorted(unknown)[0], "is not known")

    def command(self) -> tuple[Part, ...]:
        parts = self.options.get("command")
        if not isinstance(parts, list) or not parts or not isinstance(parts[0], str) or not parts[0]:
            raise invalid("command", "must be a list that begins with the program")
        for part in parts:
            texts = part if isinstance(part, list) else [part]
            if not all(isinstance(text, str) for text in texts):
                raise invalid("command", "must consist of texts and lists of texts")
            self._check_placeholders("command", texts)
        if placeholders_in(parts[0]):
            raise invalid("command", "must name its program without placeholders")
        return tuple(tuple(part) if isinstance(part, list) else part for part in parts)

    def texts(self, name: str, default: tuple[str, ...] = ()) -> tuple[str, ...]:
        texts = self.options.get(name, list(default))
        if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
            raise invalid(name, "must be a list of texts")
        self._check_placeholders(name, texts)
        return tuple(texts)

    def names(self, name: str) -> tuple[str, ...]:
        names = self.texts(name)
        if not all(_NAME.fullmatch(each) for each in names):
            raise invalid(name, "must be a list of names of variables")
        return names

    def text(self, name: str) -> str | None:
        text = self.options.get(name)
        if text is not None and (not isinstance(text, str) or not text):
            raise invalid(name, "must be text")
        return text

    def name(self, name: str) -> str | None:
        text = self.text(name)
        if text is not None and not _NAME.fullmatch(text):
            raise invalid(name, "must be the name of a variable")
        return text

    def one_of(self, name: str, choices: tuple[str, ...], default: str) -> str:
        choice = self.options.get(name, default)
        if choice not in choices:
            raise invalid(name, f"must be one of {', '.join(choices)}")
        return str(choice)

    def mapping(self, name: str) -> Mapping[str, str]:
        texts = self.options.get(name, {})
        if not isinstance(texts, dict) or not all(isinstance(text, str) for text in texts.values()):
            raise invalid(name, "must be an object of texts")
        return texts

    def variables(self) -> Mapping[str, str]:
        variables = self.mapping("variables")
        if not all(_NAME.fullmatch(name) for name in variables):
            raise invalid("variables", "must name variables")
        return variables

    def pattern(self, name: str) -> re.Pattern[str] | None:
        text = self.text(name)
        try:
            return re.compile(text, re.IGNORECASE) if text else None
        except re.error as error:
            raise invalid(name, f"is not a regular expression: {error}") from error

    def codes(self, name: str) -> frozenset[int]:
        codes = self.options.get(name, [])
        if not isinstance(codes, list) or not all(type(code) is int and 0 < code < 256 for code in codes):
            raise invalid(name, "must be a list of exit codes from 1 to 255")
        return frozenset(codes)

    def number(self, name: str, default: float, least: float, most: float) -> float:
        number = self.options.get(name, default)
        if isinstance(number, bool) or not isinstance(number, int | float) or not least <= number <= most:
            raise invalid(name, f"must be a number from {least:g} to {most:g}")
        return float(number)

    def flag(self, name: str, default: bool) -> bool:
        flag = self.options.get(name, default)
        if not isinstance(flag, bool):
            raise invalid(name, "must be true or false")
        return flag

    def limits(self) -> Limits:
        limits = self.options.get("limits", {})
        if not isinstance(limits, dict) or limits.keys() - {"memory_mb", "cpu_seconds", "nice"}:
            raise invalid("limits", "may have memory_mb, cpu_seconds and nice")
        for name, value in limits.items():
            if type(value) is not int or not (0 <= value <= 19 if name == "nice" else value > 0):
                raise invalid(f"limits.{name}", "must be a whole number above 0, nice from 0 to 19")
        return Limits(**limits)

    def _check_placeholders(self, name: str, texts: list[str]) -> None:
        for text in texts:
            if unknown := set(placeholders_in(text)) - PLACEHOLDERS:
                raise invalid(name, f"has the unknown placeholder {{{sorted(unknown)[0]}}}")
