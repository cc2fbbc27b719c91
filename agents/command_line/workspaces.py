"""Workspaces: the folder and the working copy that a run has on this machine, and how they are removed if its worker is killed.

    agents/runs/<run id>/trace.json    held locked by the worker as long as the run goes on
    agents/runs/<run id>/work/         the agent's folder; files/ what its arguments name

The lock belongs to the worker's process: the kernel takes it away however that ends. So a process with the lock knows that none attends to
the run any more, kills what is left of the agent (its processes carry the run's id in their environment), removes its worktree and its
folder. Any worker of the machine may do it at any time.

A run that works on a repository has a working copy of it: `git worktree add` before, `git worktree remove` after, on a branch of the
activity. The branch stays, so a later run of the same activity goes on where the earlier one stopped. What the agent has not committed is
committed for it, since the working copy goes away. One run at a time works on a repository of this machine, unless `exclusive` is false;
over machines and in fairness that is the business of the group key (see docs/command-line-agents.md).
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

logger = logging.getLogger(__name__)

OWN_ONLY = 0o700
ABANDONED_SECONDS = 3600.0


@dataclass(slots=True)
class Trace:
    """Of one run, while it goes on."""

    folder: Path
    descriptor: int
    user: OwnUser | None = None  # to whom its folders belong; None: the worker's own

    @property
    def work(self) -> Path:
        return self.folder / "work"

    @property
    def files(self) -> Path:
        return self.folder / "files"

    def note(self, facts: dict[str, Any]) -> None:
        """What a later process must know to remove everything. Written before anything is created."""
        known = {} if self.user is None else {"user": [self.user.uid, self.user.gid, *self.user.groups]}
        os.pwrite(self.descriptor, orjson.dumps(known | facts), 0)


@contextmanager
def keep_workspace(run_id: UUID, user: OwnUser | None = None) -> Iterator[Trace]:
    """The run's folder, which exists inside the block and is gone after it. Raises `InputUnavailable` when it cannot be made."""
    try:
        trace = _make_trace(_home() / str(run_id), user)
    except OSError as error:
        raise InputUnavailable(
            f"The run's folder cannot be made: {error.strerror}.", code="folder_unavailable"
        ) from error
    try:
        yield trace
    finally:
        _remove(trace.folder)
        os.close(trace.descriptor)


def _make_trace(folder: Path, user: OwnUser | None) -> Trace:
    folder.mkdir(mode=OWN_ONLY, parents=True)
    # Locked before it has its name: a sweep must never meet it unlocked.
    descriptor = os.open(folder / "new", os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    (folder / "new").rename(folder / "trace.json")
    trace = Trace(folder, descriptor, user)
    trace.work.mkdir(mode=OWN_ONLY)
    trace.files.mkdir(mode=OWN_ONLY)
    if user is not None:
        trace.note({})
        users.give(trace.work, user)
    return trace


def sweep() -> int:
    """End what dead workers of this machine have left running, and remove their files; returns of how many runs."""
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
                undo(facts)
            _remove(folder)
            swept += 1
            logger.warning("Left-over agent swept", extra={"action": "agent_swept", "run": folder.name})
        finally:
            os.close(descriptor)
    return swept


def _take_lock(folder: Path) -> int | None:
    """The lock of a run that nobody attends to; None while its worker lives, or when another sweeps it."""
    try:
        descriptor = os.open(folder / "trace.json", os.O_RDWR)
    except OSError:
        _remove_if_old(folder)
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor


def _remove_if_old(folder: Path) -> None:
    """Its worker died before it had a trace, or is just making one."""
    with suppress(OSError):
        if time.time() - folder.stat().st_mtime > ABANDONED_SECONDS:
            _remove(folder)


def _remove(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    if folder.exists():
        for path, inner, _ in os.walk(folder):
            for name in inner:
                with suppress(OSError):
                    os.chmod(os.path.join(path, name), OWN_ONLY)
        shutil.rmtree(folder, ignore_errors=True)


def _home() -> Path:
    return Path(settings.ORCHESTRATOR_HOME) / "agents" / "runs"


GIT_SECONDS = 120.0
BUSY_SECONDS = 5.0  # until a busy repository is tried again
DIFF_CHARACTERS = 100_000

_IDENTITY = (
    "-c",
    "user.name=Orchestrator",
    "-c",
    "user.email=orchestrator@localhost",
)
#: An agent may have changed the settings of its repository. Nothing that they name is run by the worker; filters see `_without_filters`.
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
    base: str  # the commit that the branch began at
    user: OwnUser | None = None  # who works in it, and as whom git is run there

    def outcome(self) -> dict[str, Any]:
        """What came of it. Commits what was left uncommitted."""
        _git = partial(_git_as, self.user)
        if _git(self.path, "status", "--porcelain"):
            _git(self.path, "add", "--all")
            _git(self.path, *_IDENTITY, "commit", "--quiet", "--no-verify", "-m", f"Work of {self.branch}")
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
def check_out(request: AgentRequest, chosen: Options, trace: Trace) -> Iterator[Worktree | None]:
    """The run's own working copy, if its agent works on a repository. Raises `ConfigurationError`, `RepositoryBusy`, `InputUnavailable`."""
    repository = repository_of(chosen, request.params)
    if repository is None:
        yield None
        return
    with _hold_lock(repository, shared=not chosen.exclusive):
        path, user = trace.folder / "tree", trace.user
        if user is not None:
            trace.user = user = user.beside(repository)
            path.mkdir(mode=0o700)
            users.give(path, user)
        trace.note({"repository": str(repository), "worktree": str(path)})
        try:
            yield _add_worktree(repository, path, f"orchestrator/{request.activity_id}", chosen.base, user)
        finally:
            remove(repository, path, user)


def repository_of(chosen: Options, params: Mapping[str, Any]) -> Path | None:
    """The repository of a run: the only one of its agent, or the one that `params.repository` names. Operators list what may be used."""
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


def undo(facts: Mapping[str, Any]) -> None:
    """Remove the working copy of a run whose worker was killed, as it had noted it."""
    if "worktree" in facts:
        ids = facts.get("user")
        user = OwnUser(ids[0], ids[1], tuple(ids[2:])) if ids else None
        remove(Path(facts["repository"]), Path(facts["worktree"]), user)


def remove(repository: Path, path: Path, user: OwnUser | None = None) -> None:
    """The working copy and what git knows of it; the branch stays. Nothing happens when there is none."""
    _git = partial(_git_as, user)
    if user is not None:  # its folder is the worker's, so what is in it is taken away first
        shutil.rmtree(path, ignore_errors=True)
    with suppress(InputUnavailable):
        _git(repository, "worktree", "remove", "--force", "--force", str(path))
    with suppress(InputUnavailable):
        _git(repository, "worktree", "prune", "--expire", "now")


def _add_worktree(repository: Path, path: Path, branch: str, base: str, user: OwnUser | None) -> Worktree:
    _git = partial(_git_as, user)
    known = _git(repository, "branch", "--list", branch)
    # One that was removed without git's knowledge would keep the branch from being checked out.
    _git(repository, "worktree", "prune", "--expire", "now")
    if known:
        _git(repository, "worktree", "add", "--quiet", "--force", str(path), branch)
        # Named in the repository: in the working copy, HEAD would be the branch itself.
        start = _git(path, "merge-base", "HEAD", _git(repository, "rev-parse", base))
    else:
        _git(repository, "worktree", "add", "--quiet", "-b", branch, str(path), base)
        start = _git(path, "rev-parse", "HEAD")
    return Worktree(repository, path, branch, start, user)


@contextmanager
def _hold_lock(repository: Path, *, shared: bool) -> Iterator[None]:
    """The kernel gives the lock back however this process ends."""
    folder = Path(settings.ORCHESTRATOR_HOME) / "agents" / "repositories"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    name = hashlib.sha256(str(repository).encode()).hexdigest()[:32]
    descriptor = os.open(folder / f"{name}.lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        raise RepositoryBusy(f"Another run works on {repository.name}.", retry_after=BUSY_SECONDS) from error
    try:
        yield
    finally:
        os.close(descriptor)


def _git_as(user: OwnUser | None, folder: Path, *arguments: str) -> str:
    """What git says, without the ends of lines around it. Raises `InputUnavailable`."""
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
    # A run's own user owns neither the repository nor its other working copies; git would refuse to work on what is somebody else's.
    return HARMLESS if user is None else {**HARMLESS, "safe.directory": "*"}


def _environment(user: OwnUser | None) -> dict[str, str]:
    home = os.environ.get("HOME", "/") if user is None else "/nonexistent"
    return {
        "PATH": os.environ.get("PATH", "/usr/bin:/bin"), "HOME": home, "LC_ALL": "C",
        "GIT_TERMINAL_PROMPT": "0", "GIT_OPTIONAL_LOCKS": "0",
    }  # fmt: skip


def _without_filters(folder: Path, user: OwnUser | None) -> dict[str, str]:
    """Settings that switch off every filter which the repository's own settings name, as an agent may have written them."""
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
    """Settings for one call of git, above those of every file."""
    found = {"GIT_CONFIG_COUNT": str(len(values))}
    for place, (key, value) in enumerate(values.items()):
        found |= {f"GIT_CONFIG_KEY_{place}": key, f"GIT_CONFIG_VALUE_{place}": value}
    return found
