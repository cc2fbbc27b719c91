"""The skills of a run as files, for agents on this machine: a folder that is there while the agent is called, and gone afterwards.

    runs/<run id>/CONTEXT.md       the client's context, in full
    runs/<run id>/manifest.json    what skills there are, and where
    runs/<run id>/<key>/SKILL.md   one skill

The folder lies in ORCHESTRATOR_HOME and only this process's user can look into it. It is removed however the call ends; what a killed
process leaves behind is found by `left_behind`.
"""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from uuid import UUID

import orjson
from django.conf import settings

from agents.contracts import AdapterSettings, AgentRequest
from agents.exceptions import InputUnavailable
from agents.models import Adapter
from agents.models.skill import key_validator
from agents.skills import Knowledge, KnownSkill

logger = logging.getLogger(__name__)

OWN_ONLY = 0o700


def is_local(settings: AdapterSettings) -> bool:
    """Whether the agent runs on this machine, so that it can read files."""
    return settings.adapter in (Adapter.INLINE, Adapter.CLI)


@contextmanager
def laid_out(request: AgentRequest, knowledge: Knowledge) -> Iterator[AgentRequest]:
    """The request with `skills_dir`, which exists inside the block; unchanged for agents elsewhere and where there is nothing to know.

    Raises `InputUnavailable` when the files cannot be written.
    """
    if not knowledge or not is_local(request.settings):
        yield request
        return
    folder = _folder_of(request.run_id)
    try:
        _write(folder, request, knowledge)
        yield replace(request, skills_dir=folder)
    finally:
        remove(request.run_id)


def left_behind() -> set[UUID]:
    """The runs whose folders are here. Those of runs that are not live may be removed."""
    try:
        names = os.listdir(_home())
    except FileNotFoundError:
        return set()
    return {run_id for name in names if (run_id := _as_run_id(name)) is not None}


def remove(run_id: UUID) -> None:
    """Remove the folder of a run, whatever an agent has put into it. Nothing happens when there is none; never fails."""
    folder = _folder_of(run_id)
    shutil.rmtree(folder, ignore_errors=True)
    if folder.exists():
        _take_rights_back(folder)
        shutil.rmtree(folder, ignore_errors=True)
    if folder.exists():
        logger.warning(
            "Files of a run could not be removed", extra={"action": "skills_left", "run": str(run_id)}
        )


def _write(folder: Path, request: AgentRequest, knowledge: Knowledge) -> None:
    try:
        folder.parent.mkdir(mode=OWN_ONLY, parents=True, exist_ok=True)
        folder.mkdir(mode=OWN_ONLY)
        if knowledge.context:
            (folder / "CONTEXT.md").write_text(_joined(knowledge.context), encoding="utf-8")
        manifest = orjson.dumps(request.skills.manifest, option=orjson.OPT_INDENT_2)
        (folder / "manifest.json").write_bytes(manifest)
        for skill in knowledge.skills:
            key_validator(skill.key)  # it becomes a name of a folder, so it is not taken on trust
            file = folder / skill.path
            file.parent.mkdir(mode=OWN_ONLY)
            file.write_text(skill.content, encoding="utf-8")
    except OSError as error:
        raise InputUnavailable(
            f"The skills could not be laid out as files: {error.strerror}.", code="skills_unavailable"
        ) from error


def _joined(context: tuple[KnownSkill, ...]) -> str:
    return "\n\n".join(f"# {file.name}\n\n{file.content.strip()}" for file in context) + "\n"


def _home() -> Path:
    return Path(settings.ORCHESTRATOR_HOME) / "runs"


def _folder_of(run_id: UUID) -> Path:
    return _home() / str(run_id)


def _as_run_id(name: str) -> UUID | None:
    try:
        found = UUID(name)
    except ValueError:
        return None
    return found if str(found) == name else None


def _take_rights_back(folder: Path) -> None:
    """Some tools protect the folders that they make, which keeps their owner from deleting what is in them."""
    with suppress(OSError):
        folder.chmod(OWN_ONLY)
        for path, inner, _ in os.walk(folder):
            for name in inner:
                if not os.path.islink(found := os.path.join(path, name)):
                    os.chmod(found, OWN_ONLY)
