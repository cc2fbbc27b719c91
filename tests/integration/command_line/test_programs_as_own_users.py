"""Where the worker may switch, each run has a user of its own: tried with real programs, by a worker that is root."""

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
from tests.programs import Linked, a_request

pytestmark = pytest.mark.skipif(not users.may_switch(), reason="only root can switch")

FIRST, LAST = 47_000, 47_099
PASSWORD = "hunter2-of-the-database"

#: What a hostile program does first: it asks every process of the machine for its environment, and its worker for its memory.
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
    """Where other users can go to, unlike pytest's own folders."""
    folder = Path(tempfile.mkdtemp(prefix="own-users-"))
    folder.chmod(0o755)
    settings.ORCHESTRATOR_HOME = folder / "home"
    settings.ORCHESTRATOR_CLI_COMMANDS = ("sh",)
    settings.ORCHESTRATOR_CLI_SHARED_USER = False
    settings.ORCHESTRATOR_CLI_USERS = (FIRST, LAST)
    monkeypatch.setattr(users, "forbid_inspection", lambda: None)  # what is tried here must hold without it
    yield folder
    shutil.rmtree(folder)


def says(script: str, request: AgentRequest | None = None, link: Linked | None = None, **options: Any) -> str:
    wanted = request or a_request({})
    given = a_request(
        {"command": ["sh", "-c", script], **options},
        tenant_id=wanted.tenant_id, agent_role=wanted.agent_role, run_id=uuid4(), activity_id=wanted.activity_id, params=wanted.params,
    )  # fmt: skip
    result = run_agent(given, link=link or Linked())
    assert isinstance(result, Completed)
    return str(result.output.content).strip()


def test_a_program_reads_no_environment_but_its_own(monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
    # A process of the worker's user that has a password, and the run of another role, which has a token.
    held = home / "held"
    other = subprocess.Popen(["sleep", "60"], env={"DATABASE_URL": PASSWORD, "PATH": os.environ["PATH"]})
    try:
        with ThreadPoolExecutor(1) as pool:
            os.mkfifo(held)
            held.chmod(0o666)
            beside = pool.submit(says, f"read line < {held}")
            with held.open("w"):  # opens once that run reads
                as_root = ["sh", "-c", LOOK.replace("$(id -u)", "nobody")]
                seen = subprocess.run(as_root, capture_output=True, text=True, check=False, cwd=home)
                told = says(LOOK)
            with pytest.raises(AgentError):
                beside.result()
    finally:
        other.kill()
        other.wait()

    assert f"/proc/{other.pid}/environ" in seen.stdout  # root sees it, so there was something to see
    assert seen.stdout.count("environ") >= 2
    assert told == ""


def test_each_run_has_a_number_that_no_other_has_and_no_way_back() -> None:
    script = "id -u; id -g; id -G; grep NoNewPrivs /proc/self/status; touch x && stat -c %u x"
    runs = [says(script).split() for _ in range(3)]

    assert len({run[0] for run in runs}) == 3
    for uid, gid, groups, *rest in runs:
        assert FIRST <= int(uid) <= LAST
        assert FIRST <= int(gid) <= LAST
        assert groups == gid
        assert rest == ["NoNewPrivs:", "1", uid]


def test_runs_at_once_have_different_users_and_one_home_if_they_are_of_one_role(home: Path) -> None:
    request = a_request({})
    says(
        "umask 077; echo earlier > $HOME/note; mkdir -m 700 $HOME/inner; echo deep > $HOME/inner/note",
        request,
    )
    together = threading.Barrier(2)

    def both(name: str) -> list[str]:
        link = Linked()
        link.log = lambda kind, text: together.wait(20) if text == "here" else None  # type: ignore[method-assign, assignment]
        script = f"echo here; sleep 0.5; cat $HOME/note $HOME/inner/note; id -u; echo {name} > $HOME/{name}"
        return says(script, request, link).split()

    with ThreadPoolExecutor(2) as pool:
        one, two = pool.map(both, ("one", "two"))

    assert one[1:3] == two[1:3] == ["earlier", "deep"]
    assert one[3] != two[3]
    assert says("cat $HOME/one $HOME/two", request).split() == ["one", "two"]


def test_the_home_of_another_role_and_the_files_of_another_run_are_closed(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = home / "tmp"
    shared.mkdir()
    shared.chmod(0o1777)
    monkeypatch.setattr(users, "SHARED_FOLDERS", (str(shared),))
    says(
        f"umask 000; echo mine > $HOME/secret; mkdir {shared}/a; echo mine > {shared}/b; ln -s /etc {shared}/c; echo"
    )
    folder = home / "home" / "agents"

    told = says(
        f"cat {folder}/homes/*/*/secret {folder}/homes/*/dev/secret; ls {folder}/homes {folder}/runs {folder}/users; echo end"
    )

    assert told == "end"
    assert list(shared.iterdir()) == []


def test_what_hides_from_its_session_and_its_environment_is_ended_with_the_run() -> None:
    uid = says("env -i setsid sh -c 'sleep 300 & sleep 300' > /dev/null 2>&1 < /dev/null & sleep 0.3; id -u")

    assert [each for each in psutil.process_iter() if _lives_as(int(uid), each)] == []


def _lives_as(uid: int, process: psutil.Process) -> bool:
    """Whether it is one of this user. Others come and go meanwhile."""
    with suppress(psutil.NoSuchProcess):
        return uid in process.uids() and process.status() != "zombie"
    return False


def test_a_program_may_open_its_output_by_name() -> None:
    assert says("echo said > /dev/stdout; echo too > /dev/stderr") == "said"


def test_links_in_a_home_lead_a_later_run_nowhere(home: Path) -> None:
    request, target = a_request({}), home / "of-the-worker"
    target.write_text("x")
    target.chmod(0o600)
    says(f"ln -s {target} $HOME/link; ln -s {home} $HOME/folder", request)

    says("true; echo", request)

    assert (target.stat().st_uid, target.stat().st_mode & 0o777) == (0, 0o600)
    assert home.stat().st_uid == 0


def test_when_all_numbers_are_taken_no_program_is_started(settings: Any) -> None:
    settings.ORCHESTRATOR_CLI_USERS, request = (FIRST, FIRST), a_request({})
    with ExitStack() as held:
        from agents.command_line import invocation

        held.enter_context(users.allocate(invocation.home_of(request)))
        with pytest.raises(ConfigurationError, match="ORCHESTRATOR_CLI_USERS"):
            says("echo started", request)
    assert says("echo started", request) == "started"


def test_the_home_of_the_worker_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="home"):
        says("echo", home="worker")


def test_what_a_dead_worker_left_running_is_ended_by_its_user(home: Path) -> None:
    from agents.command_line import invocation, workspaces

    request = a_request({})
    with users.allocate(invocation.home_of(request)) as user:
        entered = workspaces.create_workspace(request.run_id, user)
        trace = entered.__enter__()
        left = subprocess.Popen(["sleep", "300"], user=user.uid, group=user.gid, extra_groups=[], env={})
        assert workspaces.sweep() == 0
        os.close(
            trace.descriptor
        )  # as the kernel does when the worker dies; below, the user's lock goes as well
        trace.descriptor = os.open("/dev/null", os.O_RDONLY)
        psutil.Process(left.pid).suspend()
        assert (
            workspaces.sweep() == 1
        )  # another run has the number, as far as the locks say: its processes are left alone
        assert left.poll() is None
    left.wait(5)


def test_a_run_works_on_a_repository_of_its_group(home: Path, settings: Any) -> None:
    repository = home / "web"
    repository.mkdir()

    def git(*arguments: str) -> str:
        told = subprocess.run(
            ["git", "-C", str(repository), *arguments], check=True, capture_output=True, text=True
        )
        return told.stdout.strip()

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

    says("echo one > notes.txt; id -G", request, repository=str(repository))
    says(f"cat notes.txt; {commit}", request, repository=str(repository))

    branch = f"orchestrator/{request.activity_id}"
    assert json.loads(json.dumps(git("log", "--format=%s", branch))).split("\n")[0] == "Own"
    assert git("show", f"{branch}:notes.txt") == "one"
    assert git("worktree", "list").count("\n") == 0
    assert workspaces.HARMLESS["core.hooksPath"] == "/dev/null"


def test_a_repository_that_is_not_open_to_a_group_is_told_in_words_of_git(home: Path, settings: Any) -> None:
    repository = home / "web"
    subprocess.run(["git", "init", "--quiet", str(repository)], check=True)
    repository.chmod(0o700)
    settings.ORCHESTRATOR_CLI_REPOSITORIES = (str(repository),)

    with pytest.raises(AgentError, match=r"git .* failed"):
        says("echo", repository=str(repository))
