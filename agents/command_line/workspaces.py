"""Creates the folder and the working copy of a run on this machine, and removes them even if its worker is killed.

    agents/runs/<run id>/trace.json    locked by the worker for the duration of the run
    agents/runs/<run id>/work/         the agent's folder
    agents/runs/<run id>/files/        the files that its arguments name

The kernel releases the lock when the worker's process ends, in whatever way. So a process that gets the lock knows that the run has no
worker any more. It kills the remaining processes of the agent (which have the run's id in their environment), commits what the agent has
left in its worktree, and removes the worktree and the folder. Any worker of the machine may do this at any time.

A run that works on a repository has a working copy of it: `git worktree add` before, `git worktree remove` after, on a branch of the
activity. The branch stays, so a later run of the same activity continues where the earlier one stopped. Uncommitted changes are
committed, because the working copy is removed. One run at a time works on a repository of this machine, unless `exclusive` is false;
use the group key to limit this across machines, with fair turns (see docs/command-line-agents.md).
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID

import orjson
from django.conf import settings

from agents.command_line import users
from agents.command_line.options import Options, invalid
from agents.command_line.processes import kill_all_of
from agents.command_line.users import OwnUser
from agents.contracts import AgentRequest
from agents.exceptions import ConfigurationError, InputUnavailable
from agents.local_files import OWN_ONLY, delete_folder, lock_file

logger = logging.getLogger(__name__)

ABANDONED_SECONDS = 3600.0


@dataclass(slots=True)
class Workspace:
    """The folder of one run, for the duration of the run."""

    folder: Path
    descriptor: int
    user: OwnUser | None = None  # the owner of its folders; None: the worker's own user

    @property
    def work(self) -> Path:
        return self.folder / "work"

    @property
    def files(self) -> Path:
        return self.folder / "files"

    def record(self, facts: dict[str, Any]) -> None:
        """Record what another process needs to know to remove everything. Call it before creating anything."""
        owner = {} if self.user is None else {"user": [self.user.uid, self.user.gid, *self.user.groups]}
        os.pwrite(self.descriptor, orjson.dumps(owner | facts), 0)


@contextmanager
def create_workspace(run_id: UUID, user: OwnUser | None = None) -> Iterator[Workspace]:
    """Create the run's folder for the block, and remove it afterwards. Raises `InputUnavailable` when it cannot be created."""
    try:
        workspace = _make_workspace(_home() / str(run_id), user)
    except OSError as error:
        raise InputUnavailable(
            f"The run's folder cannot be created: {error.strerror}.", code="folder_unavailable"
        ) from error
    try:
        yield workspace
    finally:
        delete_folder(workspace.folder)
        os.close(workspace.descriptor)


def _make_workspace(folder: Path, user: OwnUser | None) -> Workspace:
    folder.mkdir(mode=OWN_ONLY, parents=True)
    # Lock the file before it gets its name, because a sweep must never find it unlocked.
    descriptor = lock_file(folder / "new")
    (folder / "new").rename(folder / "trace.json")
    workspace = Workspace(folder, descriptor, user)
    workspace.work.mkdir(mode=OWN_ONLY)
    workspace.files.mkdir(mode=OWN_ONLY)
    if user is not None:
        workspace.record({})
        users.hand_over(workspace.work, user)
    return workspace


def sweep() -> int:
    """End the agents of dead workers on this machine, and remove their files. Return the number of runs."""
    swept = 0
    for folder in _home().iterdir() if _home().exists() else ():
        descriptor = _take_lock(folder)
        if descriptor is None:
            continue
        try:
            kill_all_of(folder.name)
            with suppress(orjson.JSONDecodeError):
                facts = orjson.loads(os.pread(descriptor, 1_000_000, 0) or b"{}")
                if "user" in facts:
                    users.end_left_behind(facts["user"][0])
                if "worktree" in facts:
                    ids = facts.get("user")
                    user = OwnUser(ids[0], ids[1], tuple(ids[2:])) if ids else None
                    if "branch" in facts:
                        # The agent's conversation continues with the next run, and so must its work.
                        with suppress(InputUnavailable):
                            _commit_changes(Path(facts["worktree"]), facts["branch"], user)
                    _remove_worktree(Path(facts["repository"]), Path(facts["worktree"]), user)
            delete_folder(folder)
            swept += 1
            logger.warning(
                "Ended what an earlier agent had left running",
                extra={"action": "agent_swept", "run": folder.name},
            )
        finally:
            os.close(descriptor)
    return swept


def _take_lock(folder: Path) -> int | None:
    """Take the lock of a run without a worker. Return None while its worker lives, or when another process sweeps it."""
    try:
        descriptor = os.open(folder / "trace.json", os.O_RDWR)
    except OSError:
        # Without a file to lock, its worker has died, or is just creating it.
        with suppress(OSError):
            if time.time() - folder.stat().st_mtime > ABANDONED_SECONDS:
                delete_folder(folder)
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor


def _home() -> Path:
    return Path(settings.ORCHESTRATOR_HOME) / "agents" / "runs"


GIT_SECONDS = 120.0
BUSY_SECONDS = 5.0  # until a busy repository is tried again
DIFF_CHARACTERS = 100_000

_IDENTITY = ("-c", "user.name=Orchestrator", "-c", "user.email=orchestrator@localhost")
#: Keep the worker from running programs from a repository's settings, which an agent may have changed. For filters see `_without_filters`.
HARMLESS = {
    "core.hooksPath": "/dev/null",
    "core.fsmonitor": "false",
    "core.sshCommand": "false",
    "core.attributesFile": "/dev/null",
    "commit.gpgSign": "false",
    "gc.auto": "0",
    "maintenance.auto": "false",
    "submodule.recurse": "false",
}
_PLAIN = ("--no-ext-diff", "--no-textconv")


class RepositoryBusy(InputUnavailable):
    """Another run works on the repository. Uses up no attempt."""

    code = "repository_busy"


@dataclass(frozen=True, slots=True)
class Worktree:
    """The working copy of one run."""

    repository: Path
    path: Path
    branch: str
    base: str  # the commit at which the branch began
    user: OwnUser | None = None  # the user that the agent and git run as

    def outcome(self) -> dict[str, Any]:
        """Commit all uncommitted changes, and return the changes of the run."""
        _git = partial(_git_as, self.user)
        _commit_changes(self.path, self.branch, self.user)
        commit = _git(self.path, "rev-parse", "HEAD")
        diff = _git(self.path, "diff", *_PLAIN, self.base, commit)
        return {
            "branch": self.branch,
            "base": self.base,
            "commit": commit,
            "changed": commit != self.base,
            "files": _git(self.path, "diff", *_PLAIN, "--name-only", self.base, commit).splitlines()[:1000],
            "diff": diff[:DIFF_CHARACTERS],
            "diff_truncated": len(diff) > DIFF_CHARACTERS,
        }


@contextmanager
def check_out(request: AgentRequest, chosen: Options, workspace: Workspace) -> Iterator[Worktree | None]:
    """Create the run's working copy for the block, if its agent works on a repository.

    Raises `ConfigurationError`, `RepositoryBusy` or `InputUnavailable`.
    """
    repository = repository_of(chosen, request.params)
    if repository is None:
        yield None
        return
    sweep()  # because a run of this activity whose worker was killed may have left work
    with _hold_lock(repository, shared=not chosen.exclusive):
        path, user = workspace.folder / "tree", workspace.user
        if user is not None:
            workspace.user = user = user.with_group_of(repository)
            path.mkdir(mode=0o700)
            users.hand_over(path, user)
        facts = {"repository": str(repository), "worktree": str(path)}
        workspace.record(facts)
        try:
            tree = _add_worktree(repository, path, f"orchestrator/{request.activity_id}", chosen.base, user)
            # Only now, because half a working copy must not be committed.
            workspace.record({**facts, "branch": tree.branch})
            yield tree
        finally:
            _remove_worktree(repository, path, user)


def repository_of(chosen: Options, params: Mapping[str, Any]) -> Path | None:
    """Return the repository of a run: the only one of its agent, or the one that `params.repository` names.

    Raises `ConfigurationError` for a repository that operators have not listed.
    """
    source = chosen.repository
    if chosen.repositories:
        name = params.get("repository")
        if not isinstance(name, str) or name not in chosen.repositories:
            raise ConfigurationError(
                f"params.repository must name one of the repositories {', '.join(sorted(chosen.repositories))}."
            )
        source = chosen.repositories[name]
    if source is None:
        return None
    path = Path(os.path.realpath(source))
    if path not in {Path(os.path.realpath(allowed)) for allowed in settings.ORCHESTRATOR_CLI_REPOSITORIES}:
        raise invalid("repository", "is not among ORCHESTRATOR_CLI_REPOSITORIES")
    return path


def _commit_changes(path: Path, branch: str, user: OwnUser | None) -> None:
    """Commit all uncommitted changes of a working copy."""
    _git = partial(_git_as, user)
    if _git(path, "status", "--porcelain"):
        _git(path, "add", "--all")
        _git(path, *_IDENTITY, "commit", "--quiet", "--no-verify", "-m", f"Work of {branch}")


def _remove_worktree(repository: Path, path: Path, user: OwnUser | None = None) -> None:
    """Remove the working copy and git's record of it, if there is one. The branch stays."""
    _git = partial(_git_as, user)
    if user is not None:  # the user may not remove it from the worker's folder, so the worker does
        shutil.rmtree(path, ignore_errors=True)
    with suppress(InputUnavailable):
        _git(repository, "worktree", "remove", "--force", "--force", str(path))
    with suppress(InputUnavailable):
        _git(repository, "worktree", "prune", "--expire", "now")


def _add_worktree(repository: Path, path: Path, branch: str, base: str, user: OwnUser | None) -> Worktree:
    _git = partial(_git_as, user)
    branch_exists = _git(repository, "branch", "--list", branch)
    # A worktree that was removed without git's knowledge would keep the branch from being checked out.
    _git(repository, "worktree", "prune", "--expire", "now")
    if _is_copied(repository, branch, user):
        raise RepositoryBusy("What an earlier run has left is being saved.", retry_after=BUSY_SECONDS)
    if branch_exists:
        _git(repository, "worktree", "add", "--quiet", "--force", str(path), branch)
        # Resolve the base in the repository, because in the working copy HEAD is the branch itself.
        start = _git(path, "merge-base", "HEAD", _git(repository, "rev-parse", base))
    else:
        _git(repository, "worktree", "add", "--quiet", "-b", branch, str(path), base)
        start = _git(path, "rev-parse", "HEAD")
    return Worktree(repository, path, branch, start, user)


def _is_copied(repository: Path, branch: str, user: OwnUser | None) -> bool:
    """Whether a run has a working copy of the branch. People may have others."""
    copies = _git_as(user, repository, "worktree", "list", "--porcelain").split("\n\n")
    home = os.path.realpath(_home())
    return any(f"worktree {home}/" in copy and f"branch refs/heads/{branch}" in copy for copy in copies)


@contextmanager
def _hold_lock(repository: Path, *, shared: bool) -> Iterator[None]:
    """Lock the repository for the block. The kernel releases the lock if this process dies."""
    folder = Path(settings.ORCHESTRATOR_HOME) / "agents" / "repositories"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    name = hashlib.sha256(str(repository).encode()).hexdigest()[:32]
    try:
        descriptor = lock_file(folder / f"{name}.lock", shared=shared, wait=False)
    except BlockingIOError as error:
        raise RepositoryBusy(f"Another run works on {repository.name}.", retry_after=BUSY_SECONDS) from error
    try:
        yield
    finally:
        os.close(descriptor)


def _git_as(user: OwnUser | None, folder: Path, *arguments: str) -> str:
    """Run git as the user, and return its output without surrounding whitespace. Raises `InputUnavailable`."""
    try:
        environment = {
            **_environment(user),
            **_as_configuration({**_harmless(user), **_without_filters(folder, user)}),
        }
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments],
            env=environment,
            capture_output=True,
            timeout=GIT_SECONDS,
            check=True,
            **_as_user(user),
        )
    except FileNotFoundError as error:
        raise ConfigurationError("git is not installed on this machine.") from error
    except subprocess.TimeoutExpired as error:
        raise InputUnavailable(
            f"git {arguments[0]} took longer than {GIT_SECONDS:g} s.", code="git_failed"
        ) from error
    except subprocess.CalledProcessError as error:
        message = error.stderr.decode("utf-8", "replace").strip()[:300]
        raise InputUnavailable(f"git {arguments[0]} failed: {message}", code="git_failed") from error
    return done.stdout.decode("utf-8", "replace").strip()


def _as_user(user: OwnUser | None) -> dict[str, Any]:
    if user is None:
        return {}
    return {"user": user.uid, "group": user.gid, "extra_groups": list(user.groups), "umask": 0o077}


def _harmless(user: OwnUser | None) -> dict[str, str]:
    # A run's own user owns neither the repository nor its other working copies, and git refuses to work on another user's files.
    return HARMLESS if user is None else {**HARMLESS, "safe.directory": "*"}


def _environment(user: OwnUser | None) -> dict[str, str]:
    home = os.environ.get("HOME", "/") if user is None else "/nonexistent"
    return {
        "PATH": os.environ.get("PATH", "/usr/bin:/bin"), "HOME": home, "LC_ALL": "C",
        "GIT_TERMINAL_PROMPT": "0", "GIT_OPTIONAL_LOCKS": "0",
    }  # fmt: skip


def _without_filters(folder: Path, user: OwnUser | None) -> dict[str, str]:
    """Return settings that switch off every filter in the repository's settings, because an agent may have written them."""
    listed = subprocess.run(
        ["git", "-C", str(folder), "config", "--null", "--name-only", "--get-regexp", "^filter\\."],
        env={**_environment(user), **_as_configuration(_harmless(user))}, capture_output=True, timeout=GIT_SECONDS, check=False,
        **_as_user(user),
    )  # fmt: skip
    keys = [key for key in listed.stdout.decode("utf-8", "surrogateescape").split("\0") if key]
    drivers = {key.rpartition(".")[0] for key in keys}
    return {
        f"{driver}.{name}": value
        for driver in drivers
        for name, value in (("clean", ""), ("smudge", ""), ("process", ""), ("required", "false"))
    }


def _as_configuration(values: Mapping[str, str]) -> dict[str, str]:
    """Return the environment that gives one call of git these settings, above those of every file."""
    environment = {"GIT_CONFIG_COUNT": str(len(values))}
    for index, (key, value) in enumerate(values.items()):
        environment |= {f"GIT_CONFIG_KEY_{index}": key, f"GIT_CONFIG_VALUE_{index}": value}
    return environment
