"""Builds the command of a request: arguments, environment, prompt and limits.

Only text of the operators decides what is run: the program is on their list, and there is no shell. Prompts are passed by standard
input or as a file, and secrets in the environment. The few values that may become arguments have a form that cannot be mistaken
for an option.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import orjson
from django.conf import settings

from agents import payload
from agents.command_line import options, users
from agents.command_line.options import Options
from agents.command_line.processes import RUN_ID, Command
from agents.command_line.users import OwnUser
from agents.contracts import AgentRequest
from agents.exceptions import ConfigurationError, SessionInvalid
from tenants import tracing

#: The variables that a program gets from the worker's environment. Others may hold passwords of databases and keys of other agents.
ALLOWED = ("PATH", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "SSL_CERT_FILE", "SSL_CERT_DIR")

_CALLBACK = ("ORCHESTRATOR_CALLBACK_URL", "ORCHESTRATOR_CALLBACK_TOKEN")
_HARMLESS = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@+=-]{0,199}")


def command_of(
    request: AgentRequest,
    chosen: Options,
    *,
    files: Path,
    work: Path,
    repository: str | None,
    user: OwnUser | None = None,
) -> Command:
    """Return the command, and write the files that its arguments name into the folder `files`.

    Raises `ConfigurationError` or `SessionInvalid`.
    """
    program = program_of(chosen)
    values = {**_values(request, files, work, repository), **(_mcp_placeholders(files) if chosen.mcp else {})}
    arguments = list(_fill_placeholders(chosen, values))
    if user is not None:
        users.hand_over(files, user)
        if request.skills_dir is not None:
            users.hand_over(request.skills_dir, user)
    return Command(
        arguments=[program, *arguments[1:]],
        environment=environment_of(request, chosen, work),
        folder=work,
        prompt=request.prompt.encode() if chosen.prompt == "stdin" else b"",
        limits=chosen.limits,
        seconds=request.timeout_seconds,
        grace_seconds=chosen.kill_grace_seconds,
        user=user,
    )


def program_of(chosen: Options) -> str:
    """Return the absolute path of the program. Raises `ConfigurationError` unless the operators of this machine allow it."""
    name = str(chosen.command[0])
    if name not in settings.ORCHESTRATOR_CLI_COMMANDS:
        raise ConfigurationError(f"{name} is not among the programs in ORCHESTRATOR_CLI_COMMANDS.")
    path = shutil.which(name)
    if path is None:
        raise ConfigurationError(f"The program {name} is not installed on this machine.")
    return os.path.abspath(path)


def environment_of(request: AgentRequest, chosen: Options, work: Path) -> dict[str, str]:
    """Return the whole environment of the agent. It contains secrets: never log it."""
    names = (*ALLOWED, *(("HOME",) if chosen.home == "worker" else ()), *chosen.environment)
    variables = {name: os.environ[name] for name in names if name in os.environ}
    if chosen.home == "own":
        variables["HOME"] = str(home_of(request))
    variables |= {"TMPDIR": str(work)} | dict(chosen.variables)
    if chosen.credential_variable and (secret := _credential(request.settings.auth)):
        variables[chosen.credential_variable] = secret
    variables |= {
        RUN_ID: str(request.run_id),
        "ORCHESTRATOR_ACTIVITY_ID": str(request.activity_id),
        "ORCHESTRATOR_AGENT_ROLE": request.agent_role,
        "ORCHESTRATOR_CALLBACK_URL": request.callback.url,
        "ORCHESTRATOR_CALLBACK_TOKEN": request.callback.token,
        "ORCHESTRATOR_DEADLINE": request.deadline.isoformat(),
    }
    if request.skills_dir is not None:
        variables["ORCHESTRATOR_SKILLS_DIR"] = str(request.skills_dir)
    return variables | {header.upper(): value for header, value in tracing.outgoing().items()}


def home_of(request: AgentRequest) -> Path:
    """Return the folder in which the program stores its sessions: one for each tenant and role, so that no role reads another's."""
    home = Path(settings.ORCHESTRATOR_HOME) / "agents" / "homes" / str(request.tenant_id) / request.agent_role
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    return home


def _credential(auth: Mapping[str, str]) -> str | None:
    return auth.get("token") or auth.get("value") or auth.get("password")


def _values(request: AgentRequest, files: Path, work: Path, repository: str | None) -> dict[str, str | None]:
    """Return the values of the placeholders, and write the files of the prompt and the job."""
    # The job is as HTTP agents receive it, but without the token, which is only in the environment.
    job = orjson.loads(payload.encode_job(request))
    job["callback"].pop("token")
    return {
        "prompt_file": str(_write_file(files / "prompt.txt", request.prompt.encode())),
        "job_file": str(_write_file(files / "job.json", orjson.dumps(job))),
        "session_id": request.session_id,
        "model": request.settings.model,
        "max_turns": str(request.max_turns) if request.max_turns else None,
        "skills_dir": str(request.skills_dir) if request.skills_dir else None,
        "work_dir": str(work),
        "repository": repository,
        "role": request.agent_role,
        "run_id": str(request.run_id),
        "activity_id": str(request.activity_id),
        "mcp_config": None,
        "mcp_toml": None,
    }


def _mcp_placeholders(files: Path) -> dict[str, str]:
    """Return how the program starts the MCP server of its run. It names the variable with the token, which is only in the environment.

    The server runs isolated (`-I`), so that no file of a working copy is run as a module. It has no tools that end the run, because the run
    ends when the program exits.
    """
    if importlib.util.find_spec("mcp") is None:
        raise ConfigurationError(
            "The option mcp needs the SDK on this worker: pip install orchestrator[mcp]."
        )
    arguments = ["-I", "-m", "orchestrator.mcp", "--no-end"]
    server = {
        "type": "stdio", "command": sys.executable, "args": arguments, "env": {name: f"${{{name}}}" for name in _CALLBACK},
    }  # fmt: skip
    config = orjson.dumps({"mcpServers": {"orchestrator": server}})
    # The JSON of texts and lists of texts is also valid TOML.
    entries = ", ".join(
        f"{name}={orjson.dumps(value).decode()}"
        for name, value in (("command", sys.executable), ("args", arguments), ("env_vars", _CALLBACK))
    )
    return {"mcp_config": str(_write_file(files / "mcp.json", config)), "mcp_toml": f"{{{entries}}}"}


def _write_file(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    path.chmod(0o600)
    return path


def _fill_placeholders(chosen: Options, values: Mapping[str, str | None]) -> Iterator[str]:
    groups = [(part,) if isinstance(part, str) else part for part in chosen.command]
    optional = [isinstance(part, tuple) for part in chosen.command]
    if values["session_id"]:
        groups, optional = [*groups, chosen.resume], [*optional, False]
    for group, may_be_missing in zip(groups, optional, strict=True):
        names = [name for text in group for name in options.placeholders_in(text)]
        missing = [name for name in names if not values[name]]
        if missing and not may_be_missing:
            raise ConfigurationError(f"The command names {{{missing[0]}}}, which this run does not have.")
        if not missing:
            yield from (_replace_placeholders(text, values) for text in group)


def _replace_placeholders(text: str, values: Mapping[str, str | None]) -> str:
    for name in options.placeholders_in(text):
        value = values[name] or ""
        if name == "session_id" and not _HARMLESS.fullmatch(value):
            raise SessionInvalid("The id of the conversation has a form that cannot become an argument.")
        if name == "model" and not _HARMLESS.fullmatch(value):
            raise ConfigurationError("The model's name has a form that cannot become an argument.")
        text = text.replace(f"{{{name}}}", value)
    return text
