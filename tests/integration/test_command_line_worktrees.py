"""Agents that work on a repository get a separate working copy and a branch that is kept, one run at a time."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest

from agents.command_line import options, processes, workspaces
from agents.contracts import AgentRequest, Completed
from agents.exceptions import AgentError, ConfigurationError, RetryableAgentError
from agents.models import Agent
from agents.runner import run_agent
from tenants.models import Tenant
from tests.engine import Engine
from tests.programs import a_request, program
from tests.recording_link import RecordingLink


def git(folder: Path, *arguments: str) -> str:
    process = subprocess.run(
        ["git", "-C", str(folder), *arguments], check=True, capture_output=True, text=True
    )
    return process.stdout.strip()


@pytest.fixture
def repository(tmp_path: Path, settings: Any, monkeypatch: pytest.MonkeyPatch) -> Path:
    settings.ORCHESTRATOR_HOME = tmp_path / "home"
    settings.ORCHESTRATOR_CLI_COMMANDS = (sys.executable,)
    monkeypatch.setattr(processes, "POLL_SECONDS", 0.02)
    folder = tmp_path / "web"
    folder.mkdir()
    git(folder, "init", "--quiet", "--initial-branch=main")
    git(
        folder,
        "-c",
        "user.name=A",
        "-c",
        "user.email=a@localhost",
        "commit",
        "--quiet",
        "--allow-empty",
        "-m",
        "Begin",
    )
    settings.ORCHESTRATOR_CLI_REPOSITORIES = (str(folder),)
    return folder


WRITE = """
    with open("notes.txt", "a") as notes: notes.write("one more\\n")
    print(open("notes.txt").read().count("more"), os.getcwd())
"""


def run(repository: Path, command: list[Any], activity_id: UUID | None = None, **more: Any) -> Completed:
    request = a_request(
        {"command": command, "repository": str(repository), **more}, activity_id=activity_id or uuid4()
    )
    result = run_agent(request)
    assert isinstance(result, Completed)
    return result


def test_a_run_has_its_own_working_copy_and_its_work_stays_on_a_branch(
    repository: Path, tmp_path: Path
) -> None:
    activity_id = uuid4()

    result = run(repository, program(tmp_path, WRITE), activity_id)

    work = result.output.data["git"]
    assert (work["branch"], work["files"], work["changed"]) == (
        f"orchestrator/{activity_id}",
        ["notes.txt"],
        True,
    )
    assert "+one more" in work["diff"]
    assert work["commit"] == git(repository, "rev-parse", work["branch"])
    assert work["base"] == git(repository, "rev-parse", "main")
    assert str(repository) not in str(result.output.content)
    assert git(repository, "status", "--porcelain") == ""
    assert len(git(repository, "worktree", "list").splitlines()) == 1


def test_the_next_run_of_an_activity_continues_where_the_last_one_stopped_even_if_that_failed(
    repository: Path, tmp_path: Path
) -> None:
    activity_id = uuid4()
    with pytest.raises(AgentError):
        run(repository, program(tmp_path, WRITE + "    sys.exit(1)\n"), activity_id)

    again = run(repository, program(tmp_path, WRITE), activity_id)

    assert str(again.output.content).startswith("2 ")
    assert again.output.data["git"]["diff"].count("+one more") == 2


def test_a_run_that_changes_nothing_says_so(repository: Path, tmp_path: Path) -> None:
    work = run(repository, program(tmp_path, "print('read it')")).output.data["git"]

    assert (work["changed"], work["files"], work["diff"]) == (False, [], "")


def test_only_one_run_at_a_time_uses_a_repository_and_the_other_is_requeued_without_losing_an_attempt(
    repository: Path, tmp_path: Path
) -> None:
    started, finish = threading.Event(), tmp_path / "finish"
    code = """
        say(session_id="s-1")
        while not os.path.exists(sys.argv[1]): time.sleep(0.01)
    """
    command = program(tmp_path, code)
    link = RecordingLink()
    link.stop = lambda: started.set() if link.sessions else None  # type: ignore[assignment, return-value, func-returns-value]
    first = a_request(
        {"command": [*command, str(finish)], "repository": str(repository), "output": "stream-json"}
    )
    outcome: list[Any] = []

    def work() -> None:
        try:
            outcome.append(run_agent(first, link=link))
        except AgentError as error:
            outcome.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    assert started.wait(60)
    with pytest.raises(AgentError) as busy:
        run(repository, program(tmp_path, WRITE))
    finish.touch()
    thread.join(60)

    assert (busy.value.error_code, busy.value.retryable, busy.value.uses_attempt) == (
        "repository_busy",
        True,
        False,
    )
    assert busy.value.retry_after
    assert run(repository, program(tmp_path, WRITE)).output.data["git"]["changed"]


def test_a_repository_is_chosen_from_those_that_operators_list(repository: Path, tmp_path: Path) -> None:
    options = {
        "command": program(tmp_path, WRITE),
        "repositories": {"web": str(repository), "secret": "/etc"},
    }

    chosen = run_agent(a_request(options, params={"repository": "web"}))

    assert isinstance(chosen, Completed)
    for name, message in (("secret", "not among"), ("/etc", "must name one"), (None, "must name one")):
        with pytest.raises(ConfigurationError, match=message):
            run_agent(a_request(options, params={"repository": name}))


def test_a_missing_base_branch_is_reported_in_the_words_of_git(repository: Path, tmp_path: Path) -> None:
    with pytest.raises(RetryableAgentError, match="no-such-branch"):
        run(repository, program(tmp_path, WRITE), base="no-such-branch")


def begin(repository: Path, **more: Any) -> tuple[AgentRequest, workspaces.Workspace, Any]:
    """Begin a run as a worker does, and return its request, its folder and its working copy as an open context."""
    request = a_request({"command": [sys.executable], "repository": str(repository), **more})
    workspace = make_folder(request.run_id)
    tree = workspaces.check_out(request, options.read(request.settings.options), workspace)
    return request, workspace, tree


def make_folder(run_id: UUID) -> workspaces.Workspace:
    """Make the folder of a run. The test ends the run by closing the descriptor, as the kernel does for a dead process."""
    return workspaces._make_workspace(workspaces._home() / str(run_id), None)


def test_leftovers_of_a_killed_worker_are_removed_and_its_work_stays(repository: Path) -> None:
    _, workspace, tree = begin(repository)
    copy = tree.__enter__()
    (copy.path / "notes.txt").write_text("one more\n")
    assert workspaces.sweep() == 0
    os.close(workspace.descriptor)

    assert workspaces.sweep() == 1
    assert not workspace.folder.exists()
    assert len(git(repository, "worktree", "list").splitlines()) == 1
    assert git(repository, "show", f"{copy.branch}:notes.txt") == "one more"


def test_the_next_run_continues_the_work_of_a_killed_worker_before_any_sweep(
    repository: Path, tmp_path: Path
) -> None:
    request, workspace, tree = begin(repository, exclusive=False)
    copy = tree.__enter__()
    (copy.path / "notes.txt").write_text("one more\n")
    os.close(workspace.descriptor)

    again = run(repository, program(tmp_path, WRITE), request.activity_id, exclusive=False)

    assert str(again.output.content).startswith("2 ")


def test_no_run_begins_on_a_branch_whose_last_working_copy_is_still_there(
    repository: Path, tmp_path: Path
) -> None:
    request, workspace, tree = begin(repository, exclusive=False)
    with tree, pytest.raises(AgentError) as busy:
        run(repository, program(tmp_path, WRITE), request.activity_id, exclusive=False)
    os.close(workspace.descriptor)

    assert (busy.value.error_code, busy.value.uses_attempt) == ("repository_busy", False)


def test_half_a_working_copy_of_a_killed_worker_is_not_committed(repository: Path, tmp_path: Path) -> None:
    activity_id = uuid4()
    commit = run(repository, program(tmp_path, WRITE), activity_id).output.data["git"]["commit"]
    branch = f"orchestrator/{activity_id}"
    workspace = make_folder(uuid4())
    path = workspace.folder / "tree"
    workspace.record({"repository": str(repository), "worktree": str(path)})
    git(repository, "worktree", "add", "--no-checkout", str(path), branch)
    os.close(workspace.descriptor)

    assert workspaces.sweep() == 1
    assert git(repository, "rev-parse", branch) == commit


def test_work_on_one_repository_shares_a_group_so_that_one_runs_at_a_time(
    engine: Engine, tenant: Tenant, settings: Any
) -> None:
    Agent.objects.filter(role="qa").update(
        adapter="cli", options={"command": ["x"], "repository": "/srv/repositories/web"}
    )
    Agent.objects.filter(role="dev").update(
        adapter="cli", options={"command": ["x"], "repositories": {"a": "/a", "b": "/b"}}
    )
    Agent.objects.filter(role="seo").update(
        adapter="cli", options={"command": ["x"], "repository": "/a", "exclusive": False}
    )
    Agent.objects.filter(role="ba").update(options={"repository": "/a"})
    try:
        ids = engine.submit(tenant, "qa", 3)
        engine.submit(tenant, "qa", group_key="own")
        chosen = [engine.submit(tenant, "dev", params={"repository": name})[0] for name in ("a", "a", "b")]
        (together,) = engine.submit(tenant, "seo")

        groups = [engine.get(tenant, one).group_key for one in (ids[0], *chosen, together)]
        assert groups == ["repository:web", "repository:a", "repository:a", "repository:b", None]
        roles = [message["role"] for message in iter(engine.take, None)]
        assert sorted(roles) == ["dev", "dev", "qa", "qa", "seo"]
        others = engine.submit(tenant, "ba") + engine.submit(tenant, "dev", params={"repository": "x" * 500})
        groups = [engine.get(tenant, one).group_key for one in others]
        assert groups == [None, f"repository:{'x' * 150}"], "only the command line has repositories"
        groups = []
        for adapter in ("", "http"):
            engine.serve(tenant, "qa", adapter=adapter)
            groups += [engine.get(tenant, one).group_key for one in engine.submit(tenant, "qa")]
        assert groups == ["repository:web", None], "the tenant's own adapter counts"
    finally:
        Agent.objects.filter(role__in=["qa", "dev", "seo", "ba"]).update(adapter="http", options={})


HOSTILE = """
    import os, subprocess
    git = subprocess.check_output(["git", "rev-parse", "--git-common-dir"], text=True).strip()
    marks = os.path.join(git, "marks")
    os.mkdir(marks)
    def told(name): return f"sh -c 'touch {marks}/{name}; cat' #"
    def set(key, value): subprocess.check_call(["git", "config", key, value])
    set("filter.evil.clean", told("clean")); set("filter.evil.smudge", told("smudge")); set("filter.evil.required", "true")
    set("filter.more.evil.process", told("process"))
    set("core.fsmonitor", f"sh -c 'touch {marks}/fsmonitor' #")
    set("diff.external", told("external")); set("diff.evil.textconv", told("textconv")); set("diff.evil.command", told("command"))
    set("commit.gpgSign", "true"); set("gpg.program", f"{marks}/gpg.sh")
    os.makedirs(os.path.join(git, "hooks"), exist_ok=True)
    for hook in ("pre-commit", "post-commit", "post-checkout", "post-index-change", "reference-transaction"):
        path = os.path.join(git, "hooks", hook)
        open(path, "w").write(f"#!/bin/sh\\ntouch {marks}/{hook}\\n"); os.chmod(path, 0o755)
    open(".gitattributes", "w").write("*.txt filter=evil diff=evil\\n*.md filter=more.evil\\n")
    open("notes.txt", "w").write("one\\n"); open("notes.md", "w").write("one\\n")
    print(marks)
"""


def test_git_settings_that_an_agent_writes_are_not_executed_by_the_worker(
    repository: Path, tmp_path: Path
) -> None:
    first = run(repository, program(tmp_path, HOSTILE))
    marks = Path((first.output.content or "").strip())
    assert marks.is_dir()
    for mark in marks.iterdir():  # written by the agent's own calls of git
        mark.unlink()

    activity = uuid4()
    run(repository, program(tmp_path, WRITE), activity)
    again = run(repository, program(tmp_path, WRITE), activity)

    assert [mark.name for mark in marks.iterdir()] == []
    assert isinstance(again.output.data, dict)
    assert again.output.data["git"]["files"] == ["notes.txt"]
