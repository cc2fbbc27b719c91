"""Commands for people print the data of the API, on a terminal or elsewhere, and say what to do next when they fail."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pymongo.errors
import pytest
import redis
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.core.management import CommandError, call_command, get_commands, load_command_class
from django.db import IntegrityError, OperationalError

from activities import dead_letters
from activities.submission import NewActivity, submit
from orchestrator.management.commands import replay
from orchestrator.settings.services import whole_number
from pipelines.models import PipelineRun
from tenants import outages
from tenants.context import tenant_scope
from tenants.models import Tenant
from tenants.models.audit import AuditEntry
from tests import preloaded_manage, servers
from tests.cases import in_one_test
from tests.engine import Engine, eventually
from tests.failed_work import create_dead_letters, letters_of, submit_failing
from tests.flows import BROKEN, Flow, step
from tests.quick_python import Program
from tests.scheduling import make_schedule

pytestmark = pytest.mark.long

DOCUMENT = Path(__file__).parents[2] / "docs" / "command-line.md"
FINGERPRINT = re.compile("(?<=--fingerprint )[0-9a-f]+")
NAMES = ("queues", "why", "inbox", "replay", "schedules", "tenants")
ACTIVITY, RUN = "0198a5c2-7d3e-7c41-9c0a-6f2b1d4e8a90", "0198a5c2-7d3e-7c41-9c0a-6f2b1d4e8a91"


class Terminal(StringIO):
    def isatty(self) -> bool:
        return True


def output_of(*command: str, stdout: StringIO | None = None) -> str:
    output = stdout or StringIO()
    call_command(*command, stdout=output, stderr=StringIO())
    return output.getvalue()


def as_json(*command: str) -> Any:
    return json.loads(output_of(*command, "--json"))


@dataclass(frozen=True)
class World:
    """A tenant with one of everything that the commands print."""

    waiting: UUID
    broken: UUID
    run: UUID


@pytest.fixture
def world(engine: Engine, tenant: Tenant) -> World:
    engine.serve(tenant)
    flow = Flow(engine, tenant, step("a"), step("brief", "a"))
    flow.drain(a={"n": 1}, brief=BROKEN)
    (broken,) = submit_failing(engine, tenant)
    with tenant_scope(tenant.pk):
        submit([NewActivity(name="Read the brief", human_role="editor")], actor="test")
    make_schedule(tenant, cron="30 6 * * 1-5", timezone="Europe/Berlin")
    engine.replace_worker()
    (waiting,) = engine.submit(tenant, "dev")
    return World(waiting, broken, flow.id)


def examples() -> list[str]:
    return re.findall(r"^    manage\.py (.+)$", DOCUMENT.read_text(), re.MULTILINE)


def test_every_example_in_the_document_and_the_help_runs(
    engine: Engine, tenant: Tenant, world: World
) -> None:
    commands = examples()
    assert {line.split()[0] for line in commands} == set(NAMES)
    for name in NAMES:
        commands += load_command_class(get_commands()[name], name).examples

    # First the replay of the run, because replays of failures resume the run as well.
    for line in sorted(commands, key=lambda line: "replay run" not in line):
        replays_failures = line.startswith(("replay activity", "replay failures --tenant acme --all"))
        if replays_failures or FINGERPRINT.search(line):
            (broken,) = submit_failing(engine, tenant)
            line = FINGERPRINT.sub(letters_of(tenant, broken)[0].fingerprint, line)
        else:
            broken = world.broken
        ours = str(
            world.run if "replay run" in line else broken if "replay activity" in line else world.waiting
        )
        command = shlex.split(line.replace(RUN, ours).replace(ACTIVITY, ours))
        if "gate" in command:
            output_of(*command)
            continue
        assert output_of(*command).strip(), line


def test_the_queues_command_agrees_with_the_api(
    api: Callable[..., Any], engine: Engine, tenant: Tenant, world: World
) -> None:
    queues = {queue["role"]: queue for queue in as_json("queues", "--tenant", "acme")["queues"]}
    everybody = {queue["role"]: queue for queue in as_json("queues")["queues"]}

    for queue in api().get("/api/v1/queues/").json()["results"]:
        mine = queues[queue["role"]]
        mine.pop("oldest_wait_seconds"), queue.pop("oldest_wait_seconds")
        assert {name: mine[name] for name in queue} == queue
    assert queues["dev"]["granted"] == everybody["dev"]["granted"] == 1
    assert everybody["dev"]["waiting"] == queues["dev"]["waiting"]
    text = output_of("queues", "dev")
    assert text.splitlines()[0].split()[:3] == ["ROLE", "URGENT", "GATED"]
    assert "served" in text
    assert len(text.splitlines()) == 2


def test_the_why_command_agrees_with_the_api(api: Callable[..., Any], tenant: Tenant, world: World) -> None:
    reason = as_json("why", str(world.waiting))

    answer = api().get(f"/api/v1/activities/{world.waiting}/why/").json()
    assert {name: reason[name] for name in ("code", "detail", "holder", "position")} == {
        name: answer[name] for name in ("code", "detail", "holder", "position")
    }
    assert answer["detail"] in output_of("why", str(world.waiting))


def test_the_inbox_command_agrees_with_the_console(
    api: Callable[..., Any], tenant: Tenant, world: World
) -> None:
    inbox = as_json("inbox", "--tenant", "acme")

    assert {item["id"] for item in inbox["items"]} == {
        item["id"] for item in api().get("/api/v1/inbox/").json()["results"]
    }
    assert inbox["total"] == len(inbox["items"])
    assert "Read the brief" in output_of("inbox", "--role", "editor")
    assert "(none)" in output_of("inbox", "--role", "nobody")


def test_the_inbox_command_counts_similar_failures(engine: Engine, tenant: Tenant) -> None:
    submit_failing(engine, tenant, count=3)
    dead_letters.handle_waiting()

    (item,) = as_json("inbox")["items"]

    assert item["similar"] == 3
    assert "(3 similar)" in output_of("inbox")


def test_the_schedules_command_describes_timings_and_next_times(
    api: Callable[..., Any], tenant: Tenant, world: World
) -> None:
    (schedule,) = as_json("schedules", "--count", "3")["schedules"]

    preview = api().get(f"/api/v1/schedules/{schedule['id']}/preview/?count=3").json()
    assert schedule["in_words"] == preview["in_words"]
    assert [at[:16] for at in schedule["fires_at"]] == [at[:16] for at in preview["fires_at"]]
    assert preview["in_words"][:100] in output_of("schedules")


def test_the_tenants_command_lists_figures_and_a_named_tenant_sees_only_its_own(
    make_tenant: Callable[..., Tenant], tenant: Tenant, world: World
) -> None:
    make_tenant("globex", weight=3, max_concurrency=7)

    tenants = {each["slug"]: each for each in as_json("tenants")}

    assert (
        tenants["acme"]["waiting"],
        tenants["acme"]["asked_of_people"] > 0,
        tenants["acme"]["failed"] > 0,
    ) == (
        1,
        True,
        True,
    )
    assert (tenants["globex"]["weight"], tenants["globex"]["max_concurrency"]) == (3, 7)
    assert [tenants["globex"][name] for name in ("waiting", "running", "asked_of_people", "failed")] == [
        0,
        0,
        0,
        0,
    ]
    assert [each["slug"] for each in as_json("tenants", "--tenant", "globex")] == ["globex"]


def test_failures_are_replayed_in_batches_and_only_once(
    engine: Engine, tenant: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replay, "PORTION", 3)
    engine.serve(tenant)
    ids = create_dead_letters(tenant, 7)
    fingerprint = letters_of(tenant, ids[0])[0].fingerprint

    assert fingerprint in output_of("replay", "failures")
    assert (
        output_of("replay", "failures", "--fingerprint", fingerprint, "--dry-run").strip()
        == "would start 7, skipped 0"
    )
    assert {engine.status(tenant, each) for each in ids} == {"failed"}
    assert output_of("replay", "failures", "--fingerprint", fingerprint).strip() == "started 7, skipped 0"
    assert output_of("replay", "failures", "--all").strip() == "started 0, skipped 0"
    engine.drain()

    assert {engine.status(tenant, each) for each in ids} == {"done"}
    assert recorded_replays(tenant) == [3, 3, 1]


def recorded_replays(tenant: Tenant) -> list[int]:
    """The counts in the entries of the audit trail."""
    with tenant_scope(tenant.pk):
        entries = AuditEntry.objects.for_tenant(tenant).filter(operation="manage.py replay")
        return [entry.detail["count"] for entry in entries.order_by("number")]


def test_an_interrupted_replay_has_recorded_what_it_has_started(
    engine: Engine, tenant: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replay, "PORTION", 2)
    engine.serve(tenant)
    ids = create_dead_letters(tenant, 3)
    portions: list[Any] = []

    def interrupted(*arguments: Any, **options: Any) -> Any:
        portions.append(dead_letters_replay(*arguments, **options))
        if len(portions) == 2:
            raise KeyboardInterrupt
        return portions[-1]

    dead_letters_replay = dead_letters.replay
    monkeypatch.setattr(dead_letters, "replay", interrupted)

    with pytest.raises(KeyboardInterrupt):
        output_of("replay", "failures", "--all")

    assert [engine.status(tenant, each) for each in ids].count("failed") == 1
    assert recorded_replays(tenant) == [2]


def test_one_activity_is_replayed_and_a_second_replay_says_what_to_do_next(
    engine: Engine, tenant: Tenant
) -> None:
    engine.serve(tenant)
    (broken,) = submit_failing(engine, tenant)

    assert output_of("replay", "activity", str(broken)).strip() == "started 1, skipped 0"
    with pytest.raises(CommandError, match=rf"manage.py why {broken}"):
        output_of("replay", "activity", str(broken))


def test_a_run_can_be_replayed_as_a_dry_run_and_for_real(
    engine: Engine, tenant: Tenant, world: World
) -> None:
    tried = as_json("replay", "run", str(world.run), "--from-step", "brief", "--dry-run")
    with tenant_scope(tenant.pk):
        assert PipelineRun.objects.count() == 1, "a dry run starts nothing"

    result = as_json("replay", "run", str(world.run), "--from-step", "brief")

    assert (tried["run"], tried["anew"], tried["kept"]) == (None, ["brief"], ["a"])
    assert (result["anew"], result["kept"]) == (["brief"], ["a"])
    with tenant_scope(tenant.pk):
        assert PipelineRun.objects.get(pk=result["run"]).replay_of == world.run


def test_a_terminal_gets_a_table_without_control_characters(engine: Engine, tenant: Tenant) -> None:
    with tenant_scope(tenant.pk):
        submit([NewActivity(name="\x1b]0;stolen\x07[red]Now[/red]", human_role="editor")], actor="test")

    drawn, plain = output_of("inbox", stdout=Terminal()), output_of("inbox")

    for text in (drawn, plain):
        assert "\x1b]" not in text
        assert "\x07" not in text
    assert "[red]Now" in re.sub(r"\s", "", plain)
    assert "─" in drawn
    assert "─" not in plain


@in_one_test(
    ("command", "message"),
    [
        ("why {id}", "There is no activity"),
        ("why {id} --tenant globex", "in the tenant 'globex'"),
        ("replay run {id} --from-step a", "There is no pipeline run"),
        (
            "replay failures --tenant acme --fingerprint none",
            "No open failure has this fingerprint. See: manage.py replay failures",
        ),
        ("queues nobody", "manage.py agents list"),
        ("inbox --tenant nowhere", "manage.py create_tenant nowhere"),
        ("inbox", "Say whose it is with --tenant SLUG. There are: acme, globex"),
        ("why nonsense", "is not an id such as"),
        ("schedules --count 0", "a whole number from 1 to 100"),
        ("schedules --count 0000000509", "a whole number from 1 to 100"),
        ("replay", "required"),
    ],
)
def test_errors_say_what_is_wrong_and_what_to_do_next(
    tenant: Tenant, other_tenant: Tenant, command: str, message: str
) -> None:
    with pytest.raises(CommandError, match=re.escape(message)):
        output_of(*command.format(id=uuid4()).split())


@in_one_test(
    ("command", "code"),
    [
        ("inbox", 2),
        ("inbox --tenant nowhere", 1),
        ("purge_audit --older-than-days 0", 2),
        ("agents deploy qa one", 2),
        ("agents deploy qa 1.0.0 --endpoint nowhere", 2),
        ("agents deploy nobody 1.0.0", 1),
        ("scheduler_settings --set nothing", 2),
        ("scheduler_settings --set nothing=1", 2),
        ("scheduler_settings --set check_interval=0", 2),
        ("create_token --tenant acme --role admin --name \u200b", 2),
        ("create_token --tenant acme --role admin --user nobody", 1),
    ],
)
def test_wrong_arguments_exit_with_another_code_than_refusals(
    tenant: Tenant, other_tenant: Tenant, command: str, code: int
) -> None:
    with pytest.raises(CommandError) as refused:
        call_command(*command.split(" "))

    assert refused.value.returncode == code


def test_an_activity_of_another_tenant_is_not_found(
    engine: Engine, tenant: Tenant, other_tenant: Tenant
) -> None:
    (activity,) = engine.submit(tenant)

    assert as_json("why", str(activity), "--tenant", "acme")["tenant"] == "acme"
    with pytest.raises(CommandError, match="in the tenant 'globex'"):
        output_of("why", str(activity), "--tenant", "globex")


def test_a_wrong_port_is_refused_in_one_line_before_any_server_starts(tmp_path: Path) -> None:
    home = tmp_path / "home"
    process = subprocess.run(
        [sys.executable, "manage.py", "up"], capture_output=True, text=True, check=False,
        env={"PATH": os.environ["PATH"], "PORT": "abc", "ORCHESTRATOR_HOME": str(home)},
    )  # fmt: skip

    assert process.returncode == 1
    assert process.stderr == "PORT must be a whole number from 1 to 65535, not 'abc'.\n"
    assert not home.exists()


@pytest.mark.parametrize("text", ["0", "-1", "1.5", "65536", "\uff18\uff10", "9" * 400])
def test_a_number_out_of_its_range_is_refused(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PORT", text)
    with pytest.raises(ImproperlyConfigured, match="PORT must be a whole number from 1 to 65535"):
        whole_number("PORT", 8000, most=65_535)


@pytest.fixture(scope="module")
def manage_without_servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    """Instead of `manage.py`: the beginning of a command line whose process has loaded Django and cannot reach PostgreSQL."""
    unreachable = {"DATABASE_URL": "postgres://nobody@127.0.0.1:9/nothing"}
    place = tmp_path_factory.mktemp("commands") / "socket"
    serving = f"from tests import preloaded_manage; preloaded_manage.serve({str(place)!r})"
    with Program(
        [sys.executable, "-c", serving], env={**servers.environment(settings), **unreachable}
    ) as process:
        try:
            eventually(place.exists, 60)
            yield [sys.executable, "-S", "-E", preloaded_manage.__file__, str(place)]
        finally:
            process.kill()


def test_a_wrong_argument_exits_with_status_2(manage_without_servers: list[str]) -> None:
    assert (
        subprocess.run(
            [*manage_without_servers, "why", "nonsense"], capture_output=True, check=False
        ).returncode
        == 2
    )


@pytest.mark.parametrize(
    ("command", "code"),
    [
        ("migrate", 1),
        ("tenants", 1),
        ("recover", 1),
        ("purge --dry-run", 1),
        ("check_invariants", 2),
        ("export_tenant acme --to acme.zip", 1),
        ("offboard_tenant acme", 1),
    ],
)
def test_a_command_without_its_servers_says_in_one_line_what_to_do(
    command: str, code: int, manage_without_servers: list[str]
) -> None:
    """One function says it for all commands. `migrate` has its own connection; the last five handle errors themselves."""
    process = subprocess.run(
        [*manage_without_servers, *command.split()], capture_output=True, text=True, check=False
    )

    assert process.returncode == code
    assert "PostgreSQL does not answer. Start the servers with `manage.py up`" in process.stderr
    assert process.stderr.count("\n") == 1


def test_celery_without_servers_says_in_one_line_what_to_do(tmp_path: Path) -> None:
    """The settings are read before Celery knows whether it is a worker or a beat."""
    celery = str(Path(sys.executable).parent / "celery")
    process = subprocess.run(
        [celery, "-A", "orchestrator", "worker"], capture_output=True, text=True, check=False,
        env={"PATH": os.environ["PATH"], "ORCHESTRATOR_HOME": str(tmp_path), **servers.COMPILED},
    )  # fmt: skip

    assert process.returncode == 1
    assert process.stderr.startswith("No servers: DATABASE_URL, REDIS_URL or MONGODB_URI is not set")
    assert "Start them with `make up`" in process.stderr
    assert process.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("error", "server"),
    [
        (redis.ConnectionError("refused"), "Redis does not answer"),
        (pymongo.errors.ServerSelectionTimeoutError("refused"), "MongoDB does not answer"),
        (OperationalError("refused"), "PostgreSQL does not answer"),
        (ValueError("a bug"), ""),
        (IntegrityError("a bug"), ""),
    ],
)
def test_only_outages_are_reported_as_servers_that_do_not_answer(error: Exception, server: str) -> None:
    assert outages.reason_of(error).startswith(server)
    assert bool(outages.reason_of(error)) == bool(server)


@pytest.mark.parametrize("name", NAMES)
def test_the_help_has_examples_and_the_exit_codes(name: str) -> None:
    text = load_command_class(get_commands()[name], name).create_parser("manage.py", name).format_help()

    assert "examples:\n  manage.py " in text
    assert "exit codes: 0 success" in text
