"""What a program receives: its prompt, arguments, environment and session, without a shell."""

from __future__ import annotations

import os
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from agents.contracts import Output
from agents.exceptions import (
    ConfigurationError,
    SessionInvalid,
)
from agents.runner import run_agent
from tenants import tracing
from tests.integration.command_line.calls import run, run_and_fail
from tests.programs import KEY, TOKEN, a_request, program
from tests.tracing import collect_spans, traceparent

SHELL_WORDS = "; rm -rf / && $(echo) `id` | '\" > x\n--help"


def test_the_standard_output_of_a_program_is_its_output(tmp_path: Path) -> None:
    assert run(program(tmp_path, "print('Grüße,', sys.stdin.read())")).output == Output(
        "Grüße, Count the bees. Then rest."
    )


def test_prompt_and_job_may_be_files_and_the_job_has_no_token(tmp_path: Path) -> None:
    code = """
        job = json.load(open(sys.argv[2]))
        print(json.dumps({"output": {"data": [open(sys.argv[1]).read(), job["params"], job["callback"], sys.argv[3:]]}}))
    """
    command = [
        *program(tmp_path, code),
        "{prompt_file}",
        "{job_file}",
        ["--model", "{model}"],
        ["--skills", "{skills_dir}"],
    ]

    data = run(command, prompt="file", output="json", changes={"params": {"a": 1}}).output.data

    assert data == [
        "Count the bees. Then rest.",
        {"a": 1},
        {"url": "http://127.0.0.1:1/api/v1/agent-runs/1/"},
        [],
    ]


def test_text_from_outside_reaches_no_shell_and_becomes_no_option(tmp_path: Path) -> None:
    command = [
        *program(tmp_path, "print(json.dumps({'output': {'data': [sys.argv[1:], sys.stdin.read()]}}))"),
        "{role}",
    ]

    assert run(command, output="json", changes={"prompt": SHELL_WORDS}).output.data == [["dev"], SHELL_WORDS]
    for bad in ("--dangerous", "a b", "$(id)", "x\ny"):
        request = a_request({"command": [*command, "{model}"]})
        settings = type(request.settings)("cli", model=bad, options=request.settings.options)
        assert isinstance(
            run_and_fail([*command, "{model}"], changes={"settings": settings}), ConfigurationError
        )
        assert isinstance(
            run_and_fail(command, changes={"session_id": bad}, resume=["--resume", "{session_id}"]),
            SessionInvalid,
        )


def test_the_environment_contains_only_allowed_variables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATABASE_URL", "postgres://secret")
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy")
    command = program(tmp_path, "print(json.dumps({'output': {'data': [dict(os.environ), sys.argv]}}))")

    environment, arguments = run(
        command,
        output="json",
        credential_variable="MODEL_KEY",
        environment=["HTTPS_PROXY"],
        variables={"CI": "1"},
    ).output.data

    own = {name: value for name, value in environment.items() if name.startswith("ORCHESTRATOR_")}
    assert own.keys() == {
        "ORCHESTRATOR_RUN_ID", "ORCHESTRATOR_ACTIVITY_ID", "ORCHESTRATOR_AGENT_ROLE", "ORCHESTRATOR_CALLBACK_URL",
        "ORCHESTRATOR_CALLBACK_TOKEN", "ORCHESTRATOR_DEADLINE",
    }  # fmt: skip
    assert environment.keys() - own.keys() <= {
        "PATH", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "SSL_CERT_FILE", "SSL_CERT_DIR", "HOME", "TMPDIR", "HTTPS_PROXY", "CI", "MODEL_KEY",
    }  # fmt: skip
    assert (environment["MODEL_KEY"], environment["ORCHESTRATOR_CALLBACK_TOKEN"]) == (KEY, TOKEN)
    assert KEY not in str(arguments)
    assert TOKEN not in str(arguments)


def test_a_program_can_continue_the_trace_of_its_run(tmp_path: Path) -> None:
    command = program(tmp_path, "print(os.environ.get('TRACEPARENT', 'none'))")

    untraced = run(command, variables={"TRACEPARENT": "none"}).output.content
    with collect_spans() as spans, tracing.span("run dev"):
        traceparent_of_program = run(
            command, variables={"TRACEPARENT": "00-of-somebody-else-00"}
        ).output.content

    (agent,) = spans.named("agent dev")
    assert untraced == "none"
    assert traceparent_of_program is not None
    assert traceparent_of_program.startswith(traceparent(agent)[:-2])


def test_each_tenant_has_its_own_home_which_persists(tmp_path: Path) -> None:
    command = program(tmp_path, "print(os.environ['HOME'])")
    one, other = a_request({"command": command}), a_request({"command": command})
    homes = [run_agent(request).output.content for request in (one, other, one)]  # type: ignore[union-attr]

    assert homes[0] == homes[2] != homes[1]
    assert os.stat(str(homes[0])).st_mode & 0o077 == 0


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({}, "must be a list"),
        ({"command": ["/bin/sh", "-c", "id"]}, "not among the programs"),
        ({"command": [sys.executable, "{secret}"]}, "unknown placeholder {secret}"),
        ({"command": [sys.executable], "memory": 5}, "option memory .* is not known"),
        ({"command": [sys.executable], "limits": {"nice": -5}}, "limits.nice"),
        ({"command": [sys.executable], "output": "yaml"}, "one of text, json, stream-json"),
        ({"command": [sys.executable], "prompt": "file"}, "no argument of the command names"),
        ({"command": [sys.executable], "session_invalid": "("}, "not a regular expression"),
        ({"command": [sys.executable, "{model}"]}, "which this run does not have"),
        ({"command": [sys.executable], "repository": "/"}, "not among ORCHESTRATOR_CLI_REPOSITORIES"),
    ],
)  # fmt: skip
def test_invalid_options_of_a_program_are_a_configuration_error(options: dict[str, Any], error: str) -> None:
    with pytest.raises(ConfigurationError, match=error):
        run_agent(a_request(options))


def test_a_program_runs_with_the_options_that_are_read_elsewhere(tmp_path: Path) -> None:
    shared = {"estimate_usd": "0.30", "estimate_tokens": 5_000, "starts_per_minute": 3}

    assert run(program(tmp_path, "print('done')"), **shared).output.content == "done"


def test_a_missing_program_is_a_configuration_error(settings: Any, tmp_path: Path) -> None:
    script = tmp_path / "no-program"
    script.write_text("#!/no/such/interpreter\n")
    script.chmod(0o755)
    settings.ORCHESTRATOR_CLI_COMMANDS = ("no-such-program", str(script))

    assert isinstance(run_and_fail(["no-such-program"]), ConfigurationError)
    assert isinstance(run_and_fail([str(script)]), ConfigurationError)


def test_a_program_receives_the_configuration_of_its_tools_without_the_token(tmp_path: Path) -> None:
    pytest.importorskip("mcp", reason="pip install orchestrator[mcp]")
    code = """
        config = open(sys.argv[1]).read()
        print(json.dumps({"output": {"data": [json.loads(config), sys.argv[2], oct(os.stat(sys.argv[1]).st_mode)[-3:]]}}))
    """
    command = [*program(tmp_path, code), "{mcp_config}", "mcp_servers.orchestrator={mcp_toml}"]

    config, argument, mode = run(command, output="json", mcp=True).output.data

    server = config["mcpServers"]["orchestrator"]
    codex = tomllib.loads(argument)["mcp_servers"]["orchestrator"]
    assert (server["command"], server["args"]) == (codex["command"], codex["args"])
    assert server["args"] == ["-I", "-m", "orchestrator.mcp", "--no-end"]
    assert server["env"] == {name: f"${{{name}}}" for name in codex["env_vars"]}
    assert TOKEN not in repr((config, argument))
    assert mode == "600"


def test_a_program_receives_no_tools_unless_its_options_say_so(tmp_path: Path) -> None:
    command = [*program(tmp_path, "print(len(sys.argv))"), ["--mcp-config", "{mcp_config}"]]

    assert run(command).output.content == "1"
