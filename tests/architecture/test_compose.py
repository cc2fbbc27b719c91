"""docker-compose.yml and the Dockerfile agree with the code: the same processes, all needed settings, no open ports."""

from __future__ import annotations

import ast
import os
import re
import shlex
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from django.urls import resolve

from agents.command_line import users
from orchestrator.embedded.valkey import REDIS_USERS
from orchestrator.processes import ProcessSpec, standard_processes, system_worker
from orchestrator.processes.__main__ import main as run_process
from orchestrator.settings.unsafe import variables_needed_by
from tests.architecture import tree

PROCESSES = ("web", "worker", "system", "beat", "flower")
SERVERS = ("postgres", "redis", "mongo")

#: Variables of .env that only the containers use.
ONLY_COMPOSE = {
    "COMMAND_LINE_QUEUES",
    "POSTGRES_PASSWORD", "POSTGRES_OWNER_PASSWORD", "POSTGRES_APP_PASSWORD", "POSTGRES_SYSTEM_PASSWORD",
    "REDIS_PASSWORD", "MONGO_PASSWORD", "MONGO_APP_PASSWORD", *(f"REDIS_{user.upper()}_PASSWORD" for user in REDIS_USERS),
}  # fmt: skip
#: Documented variables that no container gets from .env, each with its reason.
NOT_PASSED_ON = {
    "CELERY_BROKER_URL": "Redis, whose address this file builds",
    "ORCHESTRATOR_HOME": "the image sets it",
    "WORKER_CONCURRENCY_SEO": "belongs to a service of its role, which this file does not have",
    "ORCHESTRATOR_CLI_SHARED_USER": "the service command-line can give each run its own user",
}
#: Passwords of the users with all rights, for people and health checks.
SUPERUSER_PASSWORDS = {"POSTGRES_PASSWORD", "REDIS_PASSWORD", "MONGO_PASSWORD"}
FOLDER = tree.ROOT / "deploy" / "compose"


@cache
def _text() -> str:
    return (tree.ROOT / "docker-compose.yml").read_text(encoding="utf-8")


@cache
def _services() -> dict[str, dict[str, Any]]:
    services: dict[str, dict[str, Any]] = yaml.safe_load(_text())["services"]
    return services


def _table(*, port: int, flower_port: int) -> list[ProcessSpec]:
    """Return all processes that may run in a container: those of one machine and the system worker."""
    return [*standard_processes(port=port, flower_port=flower_port, concurrency=None), system_worker()]


def _variables() -> dict[str, str]:
    """Return the variables of .env that the file uses, each with its default or its error text."""
    return dict(re.findall(r"\$\{(\w+)([^}]*)\}", re.sub(r"^#.*$", "", _text(), flags=re.MULTILINE)))


def _documented() -> set[str]:
    return set(
        re.findall(r"^#?(\w+)=", (tree.ROOT / ".env.example").read_text(encoding="utf-8"), re.MULTILINE)
    )


def test_every_process_and_every_server_has_a_service() -> None:
    assert {spec.name for spec in _table(port=1, flower_port=2)} == set(PROCESSES)
    assert set(_services()) == {*PROCESSES, *SERVERS, "migrate", "command-line"}


def test_only_processes_that_run_programs_may_switch_users() -> None:
    service = _services()["command-line"]

    numbers = {"CHOWN": 0, "DAC_OVERRIDE": 1, "FOWNER": 3, "KILL": 5, "SETGID": 6, "SETUID": 7}
    assert service["user"] == "0:0"
    assert tuple(numbers[name] for name in service["cap_add"]) == users.NEEDED
    assert service["cap_drop"] == ["ALL"]
    assert service["read_only"]
    assert "ORCHESTRATOR_CLI_SHARED_USER" not in service["environment"]
    assert service["profiles"] == ["command-line"]
    others = [
        name for name in (*PROCESSES, "migrate") if {"user", "cap_add", "privileged"} & set(_services()[name])
    ]
    assert others == []


@pytest.mark.parametrize("name", PROCESSES)
def test_a_container_runs_the_command_of_the_process_table(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands: list[tuple[str, ...]] = []
    command, environment = _services()[name]["command"], _services()[name]["environment"]
    monkeypatch.setattr("os.execve", lambda _, argv, __: commands.append(tuple(argv)))
    monkeypatch.setattr("sys.argv", command[2:])
    for variable in ("WEB_BIND", "PORT", "FLOWER_BIND", "FLOWER_PORT"):
        monkeypatch.setenv(variable, environment.get(variable, os.environ.get(variable, "")))

    run_process()

    expected = next(spec for spec in _table(port=8000, flower_port=5555) if spec.name == name)
    assert command[:3] == ["python", "-m", "orchestrator.processes"]
    assert commands[0][: len(expected.argv)] == expected.argv


@pytest.mark.parametrize("name", [*PROCESSES, "migrate"])
def test_a_process_has_every_setting_that_production_needs(name: str) -> None:
    environment = _services()[name]["environment"]

    assert set(variables_needed_by(_services()[name]["command"])) <= environment.keys()
    assert environment["DJANGO_SETTINGS_MODULE"] == "orchestrator.settings.production"


def test_every_variable_is_documented() -> None:
    header = _text().split("\nname:")[0]

    assert _variables().keys() <= _documented() | ONLY_COMPOSE
    assert all(name in header for name in ONLY_COMPOSE)


def test_the_code_reads_every_variable_that_a_process_is_given() -> None:
    settings = {"DJANGO_SETTINGS_MODULE"} | _documented()

    assert {name for service in PROCESSES for name in _services()[service]["environment"]} <= settings


def test_every_documented_variable_of_a_process_reaches_one() -> None:
    given = {name for service in _services().values() for name in service["environment"]}

    assert _documented() - given - _variables().keys() == NOT_PASSED_ON.keys()


def test_no_secret_has_a_default() -> None:
    secrets = {
        name for name in _variables() if re.search(r"PASSWORD|SECRET|FLOWER_BASIC_AUTH|ENCRYPTION", name)
    }

    assert len(secrets) >= 6
    # Without it requests from Slack are refused, so it may be empty.
    optional = {"SLACK_SIGNING_SECRET"}
    assert {name for name in secrets - optional if not _variables()[name].startswith(":?")} == set()


@pytest.mark.parametrize("name", [*PROCESSES, *SERVERS])
def test_every_long_running_service_has_a_health_check(name: str) -> None:
    check = _services()[name]["healthcheck"]

    assert check["test"][0] in {"CMD", "CMD-SHELL"}
    assert {"interval", "timeout", "retries"} <= check.keys()


@pytest.mark.parametrize("name", PROCESSES)
def test_a_process_waits_for_its_servers_and_the_migrations(name: str) -> None:
    waits = {service: how["condition"] for service, how in _services()[name]["depends_on"].items()}

    assert waits == {"migrate": "service_completed_successfully"} | dict.fromkeys(SERVERS, "service_healthy")


def test_migrations_run_once() -> None:
    service = _services()["migrate"]

    assert service["command"] == ["python", "manage.py", "migrate", "--noinput"]
    assert service["restart"] == "no"
    assert "healthcheck" not in service


@pytest.mark.parametrize("name", ["web", "flower"])
def test_a_check_written_in_python_can_be_compiled(name: str) -> None:
    program, _, code = _services()[name]["healthcheck"]["test"][1:]

    assert program == "python"
    ast.parse(code)


def test_the_health_check_of_web_asks_an_address_that_answers() -> None:
    code = _services()["web"]["healthcheck"]["test"][-1]

    assert resolve(re.search(r"127\.0\.0\.1:8000(/\w+)", code)[1])  # type: ignore[index]


def test_the_health_check_of_beat_reads_the_file_that_beat_writes() -> None:
    service = _services()["beat"]
    file = next(part for part in service["command"] if part.startswith("--pidfile=")).removeprefix(
        "--pidfile="
    )

    assert file in service["healthcheck"]["test"][1]
    assert any(file.startswith(f"{folder}/") for folder in service["tmpfs"])


def test_ports_are_published_on_loopback_only() -> None:
    ports = [port for service in _services().values() for port in service.get("ports", [])]

    assert len(ports) == 2
    assert all(port.startswith("127.0.0.1:") for port in ports)


def _configuration_of_redis() -> list[str]:
    script = (FOLDER / "redis.sh").read_text(encoding="utf-8")
    return script.split("<<CONFIGURATION\n")[1].removesuffix("CONFIGURATION\n").splitlines()


def test_redis_persists_its_data() -> None:
    options = dict(line.split(" ", 1) for line in _configuration_of_redis() if not line.startswith("user "))

    assert options["maxmemory-policy"] == "noeviction"
    assert options["appendonly"] == "yes"
    assert options["appendfsync"] == "everysec"
    assert options["requirepass"] == "$REDISCLI_AUTH"


def test_redis_has_a_user_for_every_kind_of_process_with_the_rights_that_tests_run_under() -> None:
    users = [line.split() for line in _configuration_of_redis() if line.startswith("user ")]

    assert {name: tuple(rules) for _, name, _, _, *rules in users} == dict(REDIS_USERS)
    assert {name: (state, password) for _, name, state, password, *_ in users} == {
        name: ("on", f">$REDIS_{name.upper()}_PASSWORD") for name in REDIS_USERS
    }


@pytest.mark.parametrize("name", PROCESSES)
def test_a_process_connects_to_redis_as_the_user_of_its_kind(name: str) -> None:
    spec = next(spec for spec in _table(port=1, flower_port=2) if spec.name == name)
    kind = spec.env["ORCHESTRATOR_REDIS_USER"]

    url = _services()[name]["environment"]["REDIS_URL"]

    assert url.startswith(f"redis://{kind}:${{REDIS_{kind.upper()}_PASSWORD:?")


@pytest.mark.parametrize("name", [*PROCESSES, "migrate"])
def test_no_process_has_the_password_of_a_user_with_all_rights(name: str) -> None:
    assert SUPERUSER_PASSWORDS & set(re.findall(r"\$\{(\w+)", str(_services()[name]["environment"]))) == set()


def test_no_command_line_contains_a_password() -> None:
    for service in _services().values():
        assert "PASSWORD" not in str(service.get("command")) + str(service.get("healthcheck"))


LOGINS = {"web": "app", "worker": "app", "system": "app", "beat": "app", "migrate": "owner"}


@pytest.mark.parametrize(("name", "login"), LOGINS.items(), ids=list(LOGINS))
def test_a_process_connects_to_postgresql_with_the_login_that_it_needs(name: str, login: str) -> None:
    environment = _services()[name]["environment"]

    assert (
        f"//orchestrator_{login}{'_login' if login == 'app' else ''}:${{POSTGRES_{login.upper()}_PASSWORD"
        in environment["DATABASE_URL"]
    )
    assert ("//orchestrator_system_login:" in environment["DATABASE_URL_SYSTEM"]) == (login == "app")


def test_every_process_connects_to_mongodb_as_the_user_of_one_database() -> None:
    script = (FOLDER / "mongo-user.js").read_text(encoding="utf-8")

    assert 'roles: [{ role: "readWrite", db: "orchestrator" }]' in script
    for name in ("web", "worker", "system", "beat"):
        assert _services()[name]["environment"]["MONGODB_URI"].endswith(
            "/orchestrator?authSource=orchestrator"
        )


@pytest.mark.parametrize("name", ["beat", "flower", "migrate"])
def test_a_process_that_opens_no_credentials_has_no_key(name: str) -> None:
    keys = {"FIELD_ENCRYPTION_KEYS", "ANTHROPIC_API_KEY", "OPENAI_API_KEY", "SLACK_WEBHOOK_URL", "EMAIL_URL"}

    assert keys & _services()[name]["environment"].keys() == set()


def test_flower_can_reach_messages_but_no_rows() -> None:
    names = {"DATABASE_URL", "DATABASE_URL_SYSTEM", "MONGODB_URI", "SECRET_KEY"}

    assert names & _services()["flower"]["environment"].keys() == set()


@pytest.mark.parametrize("name", SERVERS)
def test_a_server_can_write_only_its_data(name: str) -> None:
    assert _services()[name]["read_only"]
    assert _services()[name]["security_opt"] == ["no-new-privileges:true"]


def test_every_server_keeps_its_data_in_a_volume() -> None:
    volumes = yaml.safe_load(_text())["volumes"]

    others = {each.partition(":")[0] for each in _services()["command-line"]["volumes"]}
    assert {_services()[name]["volumes"][0].partition(":")[0] for name in SERVERS} == set(volumes) - others


@pytest.mark.parametrize("name", PROCESSES)
def test_a_process_cannot_write_to_its_container(name: str) -> None:
    service = _services()[name]

    assert service["read_only"]
    assert service["cap_drop"] == ["ALL"]


def test_the_image_runs_as_an_unprivileged_user_and_holds_every_app() -> None:
    lines = [shlex.split(line) for line in _lines_of("Dockerfile") if not line.startswith("#")]
    copied = {source for words in lines if words[0] == "COPY" for source in words[1:-1]}

    assert [words[1] for words in lines if words[0] == "USER"] == ["orchestrator"]
    assert {*tree.APPS, "templates", "manage.py", "requirements"} <= copied
    assert "." not in copied, "a copy of everything would include secrets and local data"


def test_the_build_context_holds_what_the_image_copies_and_no_secret() -> None:
    included = {
        line.removeprefix("!").rstrip("/") for line in _lines_of(".dockerignore") if line.startswith("!")
    }
    copied = {
        source.partition("/")[0]
        for line in _lines_of("Dockerfile")
        if line.startswith("COPY") and "--from" not in line
        for source in shlex.split(line)[1:-1]
    }

    assert _lines_of(".dockerignore")[1] == "*"
    assert included == copied


def _lines_of(name: str) -> list[str]:
    """Return the lines of a file, with those joined that end with a backslash."""
    text = (tree.ROOT / name).read_text(encoding="utf-8").replace("\\\n", " ")
    return [line for line in text.splitlines() if line.strip()]


DOCKER = """#!/bin/sh
case "$*" in
    *valkey*) [ "$REACHABLE" = all ] || exit 1 ;;
esac
echo sha256:$(echo "$*" | sha256sum | cut -c1-64)
"""


@pytest.mark.parametrize(("reachable", "code"), [("all", 0), ("some", 1)], ids=["all", "one is missing"])
def test_the_digest_of_every_image_is_looked_up_by_a_script(
    reachable: str, code: int, tmp_path: Path
) -> None:
    docker = tmp_path / "docker"
    docker.write_text(DOCKER, encoding="utf-8")
    docker.chmod(0o755)
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", "REACHABLE": reachable}

    script = subprocess.run(
        [tree.ROOT / "deploy" / "pin-images.sh"], env=environment, capture_output=True, text=True, check=False
    )

    lines = dict(line.split("=", 1) for line in script.stdout.splitlines())
    images = {
        name: standard.removeprefix(":-")
        for name, standard in _variables().items()
        if name.endswith("_IMAGE")
    }
    assert script.returncode == code
    assert set(images) - set(lines) == ({"VALKEY_IMAGE"} if code else set())
    for name, pinned in lines.items():
        assert re.fullmatch(rf"docker\.io/(library/)?{re.escape(images[name])}@sha256:[0-9a-f]{{64}}", pinned)
    assert ("valkey" in script.stderr) == bool(code)


def test_our_image_is_built_on_the_named_base() -> None:
    text = (tree.ROOT / "Dockerfile").read_text(encoding="utf-8")

    (standard,) = re.findall(r"^ARG PYTHON_IMAGE=(.+)$", text, re.MULTILINE)
    assert re.findall(r"^FROM (\S+)", text, re.MULTILINE) == ["${PYTHON_IMAGE}"] * 2
    assert _services()["web"]["build"]["args"]["PYTHON_IMAGE"] == f"${{PYTHON_IMAGE:-{standard}}}"
