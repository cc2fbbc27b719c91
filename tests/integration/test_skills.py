"""What a tenant's agents may know: kept through the API, told with every run, laid out as files where the agent can read files."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from django.core.exceptions import ValidationError
from django.db import connections

from activities import results, workers
from activities.run_tokens import RunToken
from agents import configuration, skill_files
from agents.api.skills import MOST_SKILLS
from agents.contracts import (
    Accepted,
    AdapterSettings,
    AgentRequest,
    AgentResult,
    Callback,
    Completed,
    Output,
    RunLink,
)
from agents.exceptions import InputUnavailable
from agents.job import job_of
from agents.models import Skill
from agents.skills import Knowledge, KnownSkill
from tenants.context import tenant_scope
from tenants.models import Tenant
from tests.engine import Engine, at_once
from tests.integration.test_api_agent_runs import RESULT, Agent, over
from tests.integration.test_api_door import problem

SKILLS = "/api/v1/skills/"
TONE = {"key": "tone", "name": "Tone", "description": "How we sound.", "content": "Be kind.\n"}
CLIENT = {"key": "client", "name": "Acme", "content": "# Acme\n\nSells tea.", "kind": "context"}
ROOT, NOBODY = 0, 65534


@pytest.fixture(autouse=True)
def home(tmp_path: Path, settings: Any) -> Path:
    settings.ORCHESTRATOR_HOME = tmp_path
    return tmp_path


@pytest.fixture
def acme(engine: Engine, tenant: Tenant) -> Iterator[Tenant]:
    engine.serve(tenant)
    yield tenant
    configuration.forget()


def add(tenant: Tenant, **fields: Any) -> Skill:
    with tenant_scope(tenant.pk):
        skill = Skill.objects.create(tenant=tenant, **{**TONE, **fields})
    configuration.forget()
    return skill


def run(engine: Engine, tenant: Tenant, role: str = "qa") -> AgentRequest:
    engine.submit(tenant, role)
    engine.drain()
    return engine.agent.calls[-1]


def paths(response: Any) -> set[str]:
    return {fault["path"] for fault in problem(response, 400, "validation_failed")["errors"]}


# Kept


def test_a_skill_is_made_read_changed_and_deleted(api: Any, tenant: Tenant) -> None:
    client = api()

    made = client.post(SKILLS, TONE)
    changed = client.put(
        f"{SKILLS}tone/", {**without_key(TONE), "content": "Be brief.", "roles": ["qa", "dev", "qa"]}
    )
    read = client.get(f"{SKILLS}tone/")
    deleted = client.delete(f"{SKILLS}tone/")

    assert (made.status_code, made["Location"], made["ETag"]) == (201, f"{SKILLS}tone/", '"1"')
    assert {
        **TONE,
        "kind": "skill",
        "roles": [],
        "enabled": True,
        "version": 1,
    }.items() <= made.json().items()
    assert (changed.json()["roles"], changed.json()["version"]) == (["dev", "qa"], 2)
    assert changed.json()["updated_at"] > made.json()["updated_at"]
    assert read.json() == changed.json()
    assert (deleted.status_code, deleted.content) == (204, b"")
    problem(client.get(f"{SKILLS}tone/"), 404, "not_found")


def without_key(body: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in body.items() if name != "key"}


def test_putting_what_is_there_already_is_no_new_version(api: Any, tenant: Tenant) -> None:
    client = api()
    client.post(SKILLS, TONE)

    again = client.put(f"{SKILLS}tone/", without_key(TONE))

    assert (again.status_code, again.json()["version"]) == (200, 1)


def test_what_a_put_leaves_out_is_emptied(api: Any, tenant: Tenant) -> None:
    client = api()
    client.post(SKILLS, {**TONE, "kind": "context", "roles": ["qa"], "enabled": False})

    shown = client.put(f"{SKILLS}tone/", {"name": "Tone", "content": "Be kind."}).json()

    assert (shown["description"], shown["kind"], shown["roles"], shown["enabled"]) == ("", "skill", [], True)


def test_the_list_leaves_the_texts_out_and_can_be_narrowed(api: Any, tenant: Tenant) -> None:
    client = api()
    for body in (
        TONE,
        CLIENT,
        {**TONE, "key": "layout", "roles": ["dev"]},
        {**TONE, "key": "old", "enabled": False},
    ):
        client.post(SKILLS, body)

    def keys(query: str) -> list[str]:
        return [item["key"] for item in client.get(f"{SKILLS}?{query}").json()["results"]]

    assert keys("") == ["client", "layout", "old", "tone"]
    assert keys("kind=context") == ["client"]
    assert keys("enabled=false") == ["old"]
    assert keys("role=qa") == ["client", "old", "tone"]
    assert keys("search=acm&ordering=-key") == ["client"]
    assert "content" not in client.get(SKILLS).json()["results"][0]
    problem(client.get(f"{SKILLS}?colour=red"), 400, "validation_failed")


@pytest.mark.parametrize(
    ("changes", "path"),
    [
        ({"key": "../tone"}, "key"), ({"key": "Tone"}, "key"), ({"key": "tone\nof-voice"}, "key"), ({"key": "x" * 64}, "key"),
        ({"key": None}, "key"), ({"name": ""}, "name"), ({"content": ""}, "content"), ({"content": 5}, "content"),
        ({"content": "x" * 100_001}, "content"), ({"description": "x" * 1_001}, "description"), ({"kind": "tool"}, "kind"),
        ({"roles": "qa"}, "roles"), ({"roles": ["qa", "nobody"]}, "roles[1]"), ({"roles": [5]}, "roles[0]"),
        ({"enabled": "yes"}, "enabled"), ({"version": 3}, "version"),
    ],
)  # fmt: skip
def test_a_skill_that_is_none_is_refused_by_path(
    api: Any, tenant: Tenant, changes: dict[str, Any], path: str
) -> None:
    assert path in paths(api().post(SKILLS, {**TONE, **changes}))
    with tenant_scope(tenant.pk):
        assert not Skill.objects.exists()


def test_a_key_is_taken_once(api: Any, tenant: Tenant) -> None:
    clients = [api(name=f"n{number}") for number in range(4)]

    answers = at_once(*[lambda c=client: c.post(SKILLS, TONE) for client in clients])

    assert sorted(answer.status_code for answer in answers) == [201, 409, 409, 409]
    problem(clients[0].post(SKILLS, {**TONE, "name": "Another"}), 409, "already_exists")


def test_there_may_not_be_any_number_of_skills(api: Any, tenant: Tenant) -> None:
    with tenant_scope(tenant.pk):
        Skill.objects.bulk_create(
            Skill(tenant=tenant, **{**TONE, "key": f"s{number}"}) for number in range(MOST_SKILLS)
        )

    problem(api().post(SKILLS, TONE), 409, "too_many_skills")


def test_what_has_changed_since_it_was_read_is_not_changed_or_deleted(api: Any, tenant: Tenant) -> None:
    client = api()
    client.post(SKILLS, TONE)
    body = without_key(TONE)

    def put(content: str) -> Any:
        return api(name=content).put(
            f"{SKILLS}tone/", {**body, "content": content}, headers={"If-Match": '"1"'}
        )

    answers = at_once(*[lambda c=content: put(c) for content in "abcd"])

    assert sorted(answer.status_code for answer in answers) == [200, 412, 412, 412]
    problem(client.delete(f"{SKILLS}tone/", headers={"If-Match": '"1"'}), 412, "precondition_failed")
    assert client.delete(f"{SKILLS}tone/", headers={"If-Match": '"2"'}).status_code == 204


def test_changes_at_once_are_counted_one_by_one(api: Any, tenant: Tenant) -> None:
    client = api()
    client.post(SKILLS, TONE)
    clients = [api(name=f"n{number}") for number in range(5)]

    at_once(
        *[
            lambda c=each, n=number: c.put(f"{SKILLS}tone/", {**without_key(TONE), "content": f"text {n}"})
            for number, each in enumerate(clients)
        ]
    )

    assert client.get(f"{SKILLS}tone/").json()["version"] == 6


def test_of_two_who_delete_it_at_once_the_second_finds_nothing(api: Any, tenant: Tenant) -> None:
    clients = [api(name=f"n{number}") for number in range(3)]
    clients[0].post(SKILLS, TONE)

    answers = at_once(*[lambda c=client: c.delete(f"{SKILLS}tone/") for client in clients])

    assert sorted(answer.status_code for answer in answers) == [204, 404, 404]


def test_only_an_admin_of_the_tenant_changes_skills(api: Any, tenant: Tenant, other_tenant: Tenant) -> None:
    api().post(SKILLS, TONE)
    stranger = api(tenant=other_tenant)

    assert problem(api("operator").post(SKILLS, TONE), 403, "forbidden")["required_role"] == "admin"
    problem(api("operator").delete(f"{SKILLS}tone/"), 403, "forbidden")
    assert api("viewer").get(f"{SKILLS}tone/").status_code == 200
    assert stranger.get(SKILLS).json()["results"] == []
    for answer in (
        stranger.get(f"{SKILLS}tone/"),
        stranger.put(f"{SKILLS}tone/", without_key(TONE)),
        stranger.delete(f"{SKILLS}tone/"),
    ):
        problem(answer, 404, "not_found")


# Told


@pytest.fixture
def remote(engine: Engine, acme: Tenant, monkeypatch: pytest.MonkeyPatch) -> None:
    """The agent of the role qa is somewhere else: it is called over HTTP, as far as the engine knows."""

    class Elsewhere:
        def run(self, request: AgentRequest, *, link: RunLink) -> AgentResult:
            return engine.agent(request)

    engine.serve(acme, "qa", adapter="http", endpoint="http://127.0.0.1:9/agent")
    monkeypatch.setattr("agents.adapters.get", lambda name: Elsewhere())


@pytest.mark.usefixtures("remote")
def test_an_agent_elsewhere_is_told_the_context_and_where_its_skills_are(
    engine: Engine, acme: Tenant
) -> None:
    add(acme, **CLIENT)
    add(acme, version=3)
    add(acme, key="layout", roles=["dev"])
    add(acme, key="old", enabled=False)

    request = run(engine, acme)

    url = f"{request.callback.url}skills/tone/"
    assert job_of(request)["skills"] == {
        "context": [{"name": "Acme", "content": "# Acme\n\nSells tea."}],
        "manifest": [
            {"key": "tone", "name": "Tone", "description": "How we sound.", "version": 3, "url": url}
        ],
    }
    assert request.skills_dir is None
    assert "Sells tea." in request.prompt
    assert "Be kind." not in request.prompt


@pytest.mark.usefixtures("remote")
def test_the_job_that_is_told_again_has_the_same_skills(engine: Engine, acme: Tenant) -> None:
    add(acme, **CLIENT)
    add(acme)
    engine.agent.behaviour = lambda request: Accepted()
    request = run(engine, acme)

    job = Agent(request).get().json()

    assert job["skills"] == job_of(request)["skills"]


def test_instructions_are_told_with_every_task(engine: Engine, acme: Tenant) -> None:
    engine.serve(acme, "qa", instructions="You test thoroughly.")

    request = run(engine, acme)

    assert request.instructions == job_of(request)["instructions"] == "You test thoroughly."
    assert "## Instructions\n\nYou test thoroughly.\n" in request.prompt
    assert "Instructions" not in run(engine, acme, "dev").prompt


def test_a_tenant_knows_its_own_skills_alone(engine: Engine, acme: Tenant, other_tenant: Tenant) -> None:
    add(other_tenant)
    add(other_tenant, **CLIENT)

    assert job_of(run(engine, acme))["skills"] == {"context": [], "manifest": []}


def test_a_tenant_without_skills_pays_nothing_for_them(engine: Engine, acme: Tenant) -> None:
    run(engine, acme)
    statements: list[str] = []

    def note(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        statements.append(sql)
        return execute(sql, params, many, context)

    with connections["default"].execute_wrapper(note):
        run(engine, acme)

    assert not [sql for sql in statements if "agents_skill" in sql]
    assert not Path(skill_files._home()).exists()


# Read by the run that needs it


@pytest.fixture
def asking(engine: Engine, acme: Tenant) -> Agent:
    """An agent at work, which may ask for its skills."""
    add(acme, version=4)
    engine.agent.behaviour = lambda request: Accepted()
    return Agent(run(engine, acme))


def read(agent: Agent, key: str = "tone") -> Any:
    return agent.client.get(f"/{agent.address}skills/{key}/")


def test_an_agent_reads_a_skill_with_the_token_of_its_run(asking: Agent) -> None:
    answer = read(asking)

    assert answer.json() == {**TONE, "version": 4}
    assert answer["ETag"] == '"4"'


@pytest.mark.parametrize(
    "fields",
    [{"roles": ["dev"]}, {"enabled": False}, {"kind": "context"}],
    ids=["of others", "off", "no skill"],
)
def test_what_an_agent_may_not_know_is_not_there(asking: Agent, acme: Tenant, fields: dict[str, Any]) -> None:
    add(acme, **{"key": "secret", **fields})

    problem(read(asking, "secret"), 404, "not_found")
    problem(read(asking, "no-such"), 404, "not_found")


def test_a_skill_of_another_tenant_is_not_there(asking: Agent, other_tenant: Tenant) -> None:
    add(other_tenant, key="theirs")

    problem(read(asking, "theirs"), 404, "not_found")


def test_skills_are_read_while_the_run_is_live_and_by_nobody_else(api: Any, asking: Agent) -> None:
    problem(api("admin").get(f"/{asking.address}skills/tone/"), 401, "invalid_token")

    asking.post("complete", RESULT)

    over(read(asking), "completed already")


# Laid out as files


def files_of(folder: Path) -> dict[str, str]:
    return {str(file.relative_to(folder)): file.read_text() for file in folder.rglob("*") if file.is_file()}


def test_an_agent_here_finds_its_skills_as_files_that_are_gone_afterwards(
    engine: Engine, acme: Tenant, home: Path
) -> None:
    add(acme, **CLIENT)
    add(acme)
    found: dict[str, Any] = {}

    def look(request: AgentRequest) -> AgentResult:
        assert request.skills_dir is not None
        found.update(
            files_of(request.skills_dir),
            folder=request.skills_dir,
            mode=request.skills_dir.stat().st_mode & 0o777,
        )
        return Completed(Output("done"))

    engine.agent.behaviour = look
    request = run(engine, acme)

    assert (found.pop("folder"), found.pop("mode")) == (home / "runs" / str(request.run_id), 0o700)
    (told,) = json.loads(found.pop("manifest.json"))
    assert (told["key"], told["path"], told["description"]) == ("tone", "tone/SKILL.md", "How we sound.")
    assert found == {"CONTEXT.md": "# Acme\n\n# Acme\n\nSells tea.\n", "tone/SKILL.md": "Be kind.\n"}
    assert request.skills.manifest[0].path == "tone/SKILL.md"
    assert list((home / "runs").iterdir()) == []


class Died(BaseException):
    """Ends a worker as SIGKILL would, but for what Python itself still does."""


@pytest.mark.parametrize("error", [ValueError, InputUnavailable, Died, SystemExit])
def test_files_are_removed_however_the_call_ends(home: Path, error: type[BaseException]) -> None:
    request, knowledge = a_request(), Knowledge(skills=(a_skill(),))

    def call() -> None:
        with skill_files.laid_out(request, knowledge) as told:
            assert told.skills_dir is not None
            assert told.skills_dir.is_dir()
            raise error("no")

    with pytest.raises(error, match="no"):
        call()

    assert list((home / "runs").iterdir()) == []


def a_request(adapter: str = "inline") -> AgentRequest:
    return AgentRequest(
        tenant_id=uuid4(), activity_id=uuid4(), run_id=uuid4(), idempotency_key="w", agent_role="qa", attempt=1, prompt="",
        settings=AdapterSettings(adapter), callback=Callback("http://x/", "t"), timeout_seconds=1,
        deadline=datetime.now(UTC) + timedelta(seconds=1),
    )  # fmt: skip


def a_skill(key: str = "tone") -> KnownSkill:
    return KnownSkill(uuid4(), "skill", key, "Tone", "", 1, "Be kind.")


@pytest.mark.parametrize("adapter", ["http", "anthropic", "openai", "batch"])
def test_agents_elsewhere_get_no_files(home: Path, adapter: str) -> None:
    request = a_request(adapter)

    with skill_files.laid_out(request, Knowledge(skills=(a_skill(),))) as told:
        assert told is request

    assert not (home / "runs").exists()


@pytest.mark.parametrize("key", ["..", "../../tone", "/etc", "a/b", "", ".", "tone\n", "Tone"])
def test_a_key_that_leads_elsewhere_is_never_made_a_folder(home: Path, key: str) -> None:
    request = a_request()

    with pytest.raises(ValidationError), skill_files.laid_out(request, Knowledge(skills=(a_skill(key),))):
        pass

    assert [path.name for path in home.rglob("*")] == ["runs"]


def test_files_that_cannot_be_written_delay_the_run_and_use_up_no_attempt(
    engine: Engine, acme: Tenant, home: Path
) -> None:
    add(acme)
    (home / "runs").write_text("in the way")

    (activity_id,) = engine.submit(acme, max_attempts=1)
    engine.drain()
    waiting = engine.get(acme, activity_id)
    (home / "runs").unlink()
    engine.make_due(acme)
    engine.drain()

    assert (waiting.status, waiting.attempts, (waiting.error or {})["code"]) == (
        "created",
        0,
        "skills_unavailable",
    )
    assert engine.status(acme, activity_id) == "done"


def test_what_an_agent_leaves_in_the_folder_goes_with_it_and_nothing_beyond(home: Path) -> None:
    kept = home / "kept"
    kept.mkdir()
    (kept / "file").write_text("mine")

    with skill_files.laid_out(a_request(), Knowledge(skills=(a_skill(),))) as told:
        assert told.skills_dir is not None
        (told.skills_dir / "link").symlink_to(kept)
        (told.skills_dir / "deep" / "deeper").mkdir(parents=True)
        (told.skills_dir / "deep" / "deeper" / "file").write_text("x")

    assert list((home / "runs").iterdir()) == []
    assert (kept / "file").read_text() == "mine"


def test_folders_that_an_agent_has_protected_are_removed_as_well(home: Path) -> None:
    with (
        bound_by_permissions(home),
        skill_files.laid_out(a_request(), Knowledge(skills=(a_skill(),))) as told,
    ):
        assert told.skills_dir is not None
        inner = told.skills_dir / "cache" / "inner"
        inner.mkdir(parents=True)
        (inner / "file").write_text("x")
        inner.chmod(0o500)
        inner.parent.chmod(0o000)
        with pytest.raises(PermissionError):
            (inner / "file").unlink()

    assert list((home / "runs").iterdir()) == []


@contextmanager
def bound_by_permissions(home: Path) -> Iterator[None]:
    """Root may delete anything: as root, go on as an account that owns nothing but what it makes in the folder."""
    account = os.geteuid()
    if account != ROOT:
        yield
        return
    home.chmod(0o777)
    for parent in home.parents[:3]:
        parent.chmod(0o755)
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(account)


def test_what_a_killed_worker_left_behind_is_removed_when_a_worker_starts(
    engine: Engine, acme: Tenant, home: Path
) -> None:
    add(acme)
    engine.agent.behaviour = lambda request: Accepted()
    live = run(engine, acme).run_id
    ended = run(engine, acme)
    results.completed(
        RunToken(acme.pk, ended.activity_id, ended.run_id, 1), Completed(Output("x")), needs_approval=False
    )
    for name in (str(live), str(ended.run_id), str(uuid4()), "notes", str(uuid4()).upper()):
        (home / "runs" / name / "tone").mkdir(parents=True)
    engine.close()

    workers.begin(roles=["qa"], concurrency=1)
    workers.end()

    left = {path.name for path in (home / "runs").iterdir()}
    assert str(live) in left
    assert "notes" in left
    assert len(left) == 3


def test_a_worker_starts_where_there_never_were_any_files(database: None) -> None:
    workers.remove_files_left_behind()

    assert skill_files.left_behind() == set()
