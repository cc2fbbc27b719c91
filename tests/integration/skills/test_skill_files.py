"""Skills as files for agents that can read files. They are removed with the run."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from django.core.exceptions import ValidationError

from activities import worker
from activities.execution import results
from activities.run_tokens import RunToken
from agents import skills
from agents.command_line import workspaces
from agents.contracts import (
    Accepted,
    AdapterSettings,
    AgentRequest,
    AgentResult,
    Callback,
    Completed,
    Output,
)
from agents.exceptions import InputUnavailable
from agents.skills import Knowledge, KnownSkill
from tenants.models import Tenant
from tests.engine import Engine
from tests.integration.recovery.losses import Died
from tests.integration.skills.knowledge import CLIENT, add_skill, run

ROOT, NOBODY = 0, 65534


def files_of(folder: Path) -> dict[str, str]:
    return {str(file.relative_to(folder)): file.read_text() for file in folder.rglob("*") if file.is_file()}


def test_a_local_agent_finds_its_skills_as_files_during_its_run(
    engine: Engine, acme: Tenant, home: Path
) -> None:
    add_skill(acme, **CLIENT)
    add_skill(acme)
    contents: dict[str, Any] = {}

    def read_files(request: AgentRequest) -> AgentResult:
        assert request.skills_dir is not None
        contents.update(
            files_of(request.skills_dir),
            folder=request.skills_dir,
            mode=request.skills_dir.stat().st_mode & 0o777,
        )
        return Completed(Output("done"))

    engine.agent.behaviour = read_files
    request = run(engine, acme)

    assert (contents.pop("folder"), contents.pop("mode")) == (home / "runs" / str(request.run_id), 0o700)
    (entry,) = json.loads(contents.pop("manifest.json"))
    assert (entry["key"], entry["path"], entry["description"]) == ("tone", "tone/SKILL.md", "How we sound.")
    assert contents == {"CONTEXT.md": "# Acme\n\n# Acme\n\nSells tea.\n", "tone/SKILL.md": "Be kind.\n"}
    assert request.skills.manifest[0].path == "tone/SKILL.md"
    assert list((home / "runs").iterdir()) == []


@pytest.mark.parametrize("error", [ValueError, InputUnavailable, Died, SystemExit])
def test_files_are_removed_however_the_call_ends(home: Path, error: type[BaseException]) -> None:
    request, knowledge = a_request(), Knowledge(skills=(a_skill(),))

    def call() -> None:
        with skills.write_files(request, knowledge) as request_with_files:
            assert request_with_files.skills_dir is not None
            assert request_with_files.skills_dir.is_dir()
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
def test_remote_agents_get_no_files(home: Path, adapter: str) -> None:
    request = a_request(adapter)

    with skills.write_files(request, Knowledge(skills=(a_skill(),))) as request_with_files:
        assert request_with_files is request

    assert not (home / "runs").exists()


@pytest.mark.parametrize("key", ["..", "../../tone", "/etc", "a/b", "", ".", "tone\n", "Tone"])
def test_an_invalid_key_never_becomes_a_folder(home: Path, key: str) -> None:
    request = a_request()

    with pytest.raises(ValidationError), skills.write_files(request, Knowledge(skills=(a_skill(key),))):
        pass

    assert [path.name for path in home.rglob("*")] == ["runs"]


def test_files_that_cannot_be_written_delay_the_run_without_using_an_attempt(
    engine: Engine, acme: Tenant, home: Path
) -> None:
    add_skill(acme)
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


def test_files_that_an_agent_adds_are_removed_and_nothing_outside(home: Path) -> None:
    outside = home / "outside"
    outside.mkdir()
    (outside / "file").write_text("mine")

    with skills.write_files(a_request(), Knowledge(skills=(a_skill(),))) as request_with_files:
        assert request_with_files.skills_dir is not None
        (request_with_files.skills_dir / "link").symlink_to(outside)
        (request_with_files.skills_dir / "deep" / "deeper").mkdir(parents=True)
        (request_with_files.skills_dir / "deep" / "deeper" / "file").write_text("x")

    assert list((home / "runs").iterdir()) == []
    assert (outside / "file").read_text() == "mine"


def test_protected_folders_of_an_agent_are_removed(home: Path) -> None:
    with (
        without_root(home),
        skills.write_files(a_request(), Knowledge(skills=(a_skill(),))) as request_with_files,
    ):
        assert request_with_files.skills_dir is not None
        inner = request_with_files.skills_dir / "cache" / "inner"
        inner.mkdir(parents=True)
        (inner / "file").write_text("x")
        inner.chmod(0o500)
        inner.parent.chmod(0o000)
        with pytest.raises(PermissionError):
            (inner / "file").unlink()

    assert list((home / "runs").iterdir()) == []


def test_a_link_in_a_protected_folder_does_not_change_the_permissions_of_its_target(home: Path) -> None:
    with without_root(home):
        outside = home / "outside"
        outside.mkdir(mode=0o755)
        request = a_request()
        with workspaces.create_workspace(request.run_id) as workspace:
            locked = workspace.work / "locked"
            locked.mkdir()
            (locked / "link").symlink_to(outside)
            locked.chmod(0o000)

    assert not workspace.folder.exists()
    assert stat.S_IMODE(outside.stat().st_mode) == 0o755


@contextmanager
def without_root(home: Path) -> Iterator[None]:
    """Continue as an unprivileged account if the test runs as root, because root may delete anything."""
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


def test_files_of_a_killed_worker_are_removed_when_a_worker_starts(
    engine: Engine, acme: Tenant, home: Path
) -> None:
    add_skill(acme)
    engine.agent.behaviour = lambda request: Accepted()
    live = run(engine, acme).run_id
    ended = run(engine, acme)
    results.record_completed(
        RunToken(acme.pk, ended.activity_id, ended.run_id, 1), Completed(Output("x")), needs_approval=False
    )
    for name in (str(live), str(ended.run_id), str(uuid4()), "notes", str(uuid4()).upper()):
        (home / "runs" / name / "tone").mkdir(parents=True)
    engine.close()

    worker.begin(roles=["qa"], concurrency=1)
    worker.end()

    remaining = {path.name for path in (home / "runs").iterdir()}
    assert str(live) in remaining
    assert "notes" in remaining
    assert len(remaining) == 3


def test_a_worker_starts_without_any_files(database: None) -> None:
    worker.remove_leftover_files()

    assert skills.list_leftover_runs() == set()
