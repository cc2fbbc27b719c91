"""The account that runs PostgreSQL if we are root: PostgreSQL refuses to run as root, so an existing ordinary account runs it.

No account is created. Only the search permission (x for others) of folders above the data and the programs is
added where it is missing, because the account must walk through them. It does not allow listing or writing.
"""

from __future__ import annotations

import logging
import os
import pwd
import stat
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict

from orchestrator.embedded.errors import EmbeddedError

logger = logging.getLogger(__name__)

# PostgreSQL's own account if there is one, else the one that every system has.
CANDIDATES = ("postgres", "nobody")


@dataclass(frozen=True)
class Account:
    name: str
    uid: int
    gid: int


class Switch(TypedDict, total=False):
    """Arguments of `subprocess` that run a program as another account."""

    user: int
    group: int
    extra_groups: list[int]


def switch_to(account: Account | None) -> Switch:
    """Return the arguments that switch to the account, or none to stay the current user."""
    if account is None:
        return {}
    return {"user": account.uid, "group": account.gid, "extra_groups": []}


def account_for(folder: Path) -> Account | None:
    """Return the account that runs the server of this folder: its owner, or the first candidate. None if we are not root."""
    if os.geteuid() != 0:
        return None
    owner = folder.stat().st_uid
    if owner != 0:
        return _account(pwd.getpwuid(owner))
    for name in CANDIDATES:
        with suppress(KeyError):
            return _account(pwd.getpwnam(name))
    raise EmbeddedError(
        f"PostgreSQL does not run as root, and none of the accounts {', '.join(CANDIDATES)} exists. "
        "Run as an ordinary user, or set DATABASE_URL to a server of your own.",
        code="no_account",
    )


def change_owner(path: Path, account: Account) -> None:
    os.chown(path, account.uid, account.gid)


def make_reachable(path: Path, account: Account) -> None:
    """Let the account walk to the path. Logs a warning for each folder whose permission it changes."""
    for folder in reversed(path.parents):
        if not _may(folder, account, stat.S_IXOTH):
            make_searchable(folder)
            logger.warning(
                "Made %s searchable, because PostgreSQL runs as %s and not as root",
                folder,
                account.name,
                extra={"action": "folder_made_searchable"},
            )


def make_searchable(folder: Path) -> None:
    folder.chmod(stat.S_IMODE(folder.stat().st_mode) | stat.S_IXOTH)


def make_readable(tree: Path, account: Account) -> None:
    """Let the account read and run a tree of programs that was installed with a strict umask."""
    for path in _find_unreadable(tree, account):
        mode = stat.S_IMODE(path.stat().st_mode)
        execute = stat.S_IXOTH if mode & stat.S_IXUSR else 0
        path.chmod(mode | stat.S_IROTH | execute)


def _find_unreadable(tree: Path, account: Account) -> Iterator[Path]:
    for path in (tree, *tree.rglob("*")):
        needed = stat.S_IROTH | (stat.S_IXOTH if path.stat().st_mode & stat.S_IXUSR else 0)
        if not _may(path, account, needed):
            yield path


def _may(path: Path, account: Account, needed: int) -> bool:
    """Return whether the account has these permissions. `needed` are bits of the class of others."""
    status = path.stat()
    shift = 6 if status.st_uid == account.uid else 3 if status.st_gid == account.gid else 0
    return (status.st_mode >> shift) & needed == needed


def _account(entry: pwd.struct_passwd) -> Account:
    return Account(entry.pw_name, entry.pw_uid, entry.pw_gid)
