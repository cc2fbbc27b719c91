"""A worker that is root runs each program as its own user. Tested with real programs."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

import psutil
import pytest

from agents.command_line import users, workspaces
from agents.contracts import AgentRequest, Completed
from agents.exceptions import AgentError, ConfigurationError
from agents.runner import run_agent
from tests.programs import a_request
from tests.recording_link import RecordingLink

pytestmark = pytest.mark.skipif(not users.may_switch(), reason="only root can switch")

FIRST, LAST = 47_000, 47_099
PASSWORD = "hunter2-of-the-database"

#: What a hostile program tries first: it reads the environment of every process, and the memory of its worker.
LOOK = """
for process in /proc/[0-9]*; do
    [ "$(stat -c %u $process 2>/dev/null)" = "$(id -u)" ] && continue
    grep -q -a -e hunter2 -e TOKEN=callback $process/environ 2>/dev/null && echo $process/environ >> found
done
touch found
(exec 3< /proc/$PPID/mem) 2>/dev/null && echo memory >> found
tr '\\n' ' ' < found
"""


@pytest.fixture(autouse=True)
def home(settings: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A home that other users can enter, unlike pytest's folders."""
    folder = Path(tempfile.mkdtemp(prefix="own-users-"))
    folder.chmod(0o755)
    settings.ORCHESTRATOR_HOME = folder / "home"
    settings.ORCHESTRATOR_CLI_COMMANDS = ("sh",)
    settings.ORCHESTRATOR_CLI_SHARED_USER = False
    settings.ORCHESTRATOR_CLI_USERS = (FIRST, LAST)
    monkeypatch.setattr(users, "forbid_inspection", lambda: None)  # because the users alone must suffice
    yield folder
    shutil.rmtree(folder)


def run_script(
    script: str, request: AgentRequest | None = None, link: RecordingLink | None = None, **options: Any
) -> str:
    template = request or a_request({})
    own = a_request(
        {"command": ["sh", "-c", script], **options},
        tenant_id=template.tenant_id, agent_role=template.agent_role, run_id=uuid4(), activity_id=template.activity_id,
        params=template.params,
    )  # fmt: skip
    result = run_agent(own, link=link or RecordingLink())
    assert isinstance(result, Completed)
    return str(result.output.content).strip()


def test_a_program_can_read_only_its_own_environment(monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
    # The secrets: a password of a process of the worker's user, and the token of a run of another role.
    pipe = home / "pipe"
    other = subprocess.Popen(["sleep", "60"], env={"DATABASE_URL": PASSWORD, "PATH": os.environ["PATH"]})
    try:
        with ThreadPoolExecutor(1) as pool:
            os.mkfifo(pipe)
            pipe.chmod(0o666)
            other_run = pool.submit(run_script, f"read line < {pipe}")
            with pipe.open("w"):  # blocks until that run reads
                as_root = ["sh", "-c", LOOK.replace("$(id -u)", "nobody")]
                seen_by_root = subprocess.run(as_root, capture_output=True, text=True, check=False, cwd=home)
                printed = run_script(LOOK)
            with pytest.raises(AgentError):
                other_run.result()
    finally:
        other.kill()
        other.wait()

    assert f"/proc/{other.pid}/environ" in seen_by_root.stdout  # because root sees the secrets
    assert seen_by_root.stdout.count("environ") >= 2
    assert printed == ""


def test_each_run_has_its_own_user_and_cannot_gain_privileges() -> None:
    script = "id -u; id -g; id -G; grep NoNewPrivs /proc/self/status; touch x && stat -c %u x"
    runs = [run_script(script).split() for _ in range(3)]

    assert len({run[0] for run in runs}) == 3
    for uid, gid, groups, *rest in runs:
        assert FIRST <= int(uid) <= LAST
        assert FIRST <= int(gid) <= LAST
        assert groups == gid
        assert rest == ["NoNewPrivs:", "1", uid]


def test_concurrent_runs_of_a_role_have_different_users_and_share_a_home(home: Path) -> None:
    request = a_request({})
    run_script(
        "umask 077; echo earlier > $HOME/note; mkdir -m 700 $HOME/inner; echo deep > $HOME/inner/note",
        request,
    )
    together = threading.Barrier(2)

    def both(name: str) -> list[str]:
        link = RecordingLink()
        link.log = lambda kind, text: together.wait(20) if text == "here" else None  # type: ignore[method-assign, assignment]
        script = f"echo here; sleep 0.5; cat $HOME/note $HOME/inner/note; id -u; echo {name} > $HOME/{name}"
        return run_script(script, request, link).split()

    with ThreadPoolExecutor(2) as pool:
        one, two = pool.map(both, ("one", "two"))

    assert one[1:3] == two[1:3] == ["earlier", "deep"]
    assert one[3] != two[3]
    assert run_script("cat $HOME/one $HOME/two", request).split() == ["one", "two"]


def test_a_program_cannot_read_the_home_of_another_role_or_files_of_another_run(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = home / "tmp"
    shared.mkdir()
    shared.chmod(0o1777)
    monkeypatch.setattr(users, "SHARED_FOLDERS", (str(shared),))
    run_script(
        f"umask 000; echo mine > $HOME/secret; mkdir {shared}/a; echo mine > {shared}/b; ln -s /etc {shared}/c; echo"
    )
    folder = home / "home" / "agents"

    printed = run_script(
        f"cat {folder}/homes/*/*/secret {folder}/homes/*/dev/secret; ls {folder}/homes {folder}/runs {folder}/users; echo end"
    )

    assert printed == "end"
    assert list(shared.iterdir()) == []


def test_processes_that_leave_their_session_and_environment_end_with_the_run() -> None:
    uid = run_script(
        "env -i setsid sh -c 'sleep 300 & sleep 300' > /dev/null 2>&1 < /dev/null & sleep 0.3; id -u"
    )

    assert [each for each in psutil.process_iter() if _lives_as(int(uid), each)] == []


def _lives_as(uid: int, process: psutil.Process) -> bool:
    """Return whether a process belongs to this user. Others may end during the check."""
    with suppress(psutil.NoSuchProcess):
        return uid in process.uids() and process.status() != "zombie"
    return False


def test_a_program_may_open_its_output_by_name() -> None:
    assert run_script("echo said > /dev/stdout; echo too > /dev/stderr") == "said"


def test_links_in_a_home_do_not_change_files_outside_it(home: Path) -> None:
    request, target = a_request({}), home / "of-the-worker"
    target.write_text("x")
    target.chmod(0o600)
    run_script(f"ln -s {target} $HOME/link; ln -s {home} $HOME/folder", request)

    run_script("true; echo", request)

    assert (target.stat().st_uid, target.stat().st_mode & 0o777) == (0, 0o600)
    assert home.stat().st_uid == 0


def test_no_program_starts_without_a_free_user(settings: Any) -> None:
    settings.ORCHESTRATOR_CLI_USERS, request = (FIRST, FIRST), a_request({})
    with ExitStack() as stack:
        from agents.command_line import invocation

        stack.enter_context(users.allocate(invocation.home_of(request)))
        with pytest.raises(ConfigurationError, match="ORCHESTRATOR_CLI_USERS"):
            run_script("echo started", request)
    assert run_script("echo started", request) == "started"


def test_the_home_of_the_worker_cannot_be_used() -> None:
    with pytest.raises(ConfigurationError, match="home"):
        run_script("echo", home="worker")


def test_processes_of_a_dead_worker_are_ended_by_their_user(home: Path) -> None:
    from agents.command_line import invocation, workspaces

    request = a_request({})
    with users.allocate(invocation.home_of(request)) as user:
        entered = workspaces.create_workspace(request.run_id, user)
        trace = entered.__enter__()
        orphan = subprocess.Popen(["sleep", "300"], user=user.uid, group=user.gid, extra_groups=[], env={})
        assert workspaces.sweep() == 0
        # As the kernel does when the worker dies; the user's lock is released below.
        os.close(trace.descriptor)
        trace.descriptor = os.open("/dev/null", os.O_RDONLY)
        psutil.Process(orphan.pid).suspend()
        # Because the lock says that another run has the number, its processes are left alone.
        assert workspaces.sweep() == 1
        assert orphan.poll() is None
    orphan.wait(5)


def test_a_run_can_work_on_a_repository_of_its_group(home: Path, settings: Any) -> None:
    repository = home / "web"
    repository.mkdir()

    def git(*arguments: str) -> str:
        printed = subprocess.run(
            ["git", "-C", str(repository), *arguments], check=True, capture_output=True, text=True
        )
        return printed.stdout.strip()

    git("init", "--quiet", "--shared=group", "--initial-branch=main")
    git(
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
    subprocess.run(["chgrp", "-R", "46999", str(repository)], check=True)
    subprocess.run(["chmod", "-R", "g+rwX", str(repository)], check=True)
    settings.ORCHESTRATOR_CLI_REPOSITORIES = (str(repository),)
    request = a_request({})
    commit = "git -c user.name=B -c user.email=b@localhost -c safe.directory='*' commit --quiet --allow-empty -m Own; id -u"

    run_script("echo one > notes.txt; id -G", request, repository=str(repository))
    run_script(f"cat notes.txt; {commit}", request, repository=str(repository))

    branch = f"orchestrator/{request.activity_id}"
    assert json.loads(json.dumps(git("log", "--format=%s", branch))).split("\n")[0] == "Own"
    assert git("show", f"{branch}:notes.txt") == "one"
    assert git("worktree", "list").count("\n") == 0
    assert workspaces.HARMLESS["core.hooksPath"] == "/dev/null"


def test_a_repository_that_is_closed_to_the_group_fails_with_the_error_of_git(
    home: Path, settings: Any
) -> None:
    repository = home / "web"
    subprocess.run(["git", "init", "--quiet", str(repository)], check=True)
    repository.chmod(0o700)
    settings.ORCHESTRATOR_CLI_REPOSITORIES = (str(repository),)

    with pytest.raises(AgentError, match=r"git .* failed"):
        run_script("echo", repository=str(repository))
