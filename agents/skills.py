"""What a tenant's agents may know beside their task: the client's context, given in full, and skills, of which they see what there is.

Read again for every run, so that what an agent is told and the digest of it that its session keeps are the same. A tenant without any
pays nothing: that there are none is remembered with the settings of the role.

Agents on this machine get the skills of a run as files, in a folder that is there while the agent is called, and gone afterwards.

    runs/<run id>/CONTEXT.md       the client's context, in full
    runs/<run id>/manifest.json    what skills there are, and where
    runs/<run id>/<key>/SKILL.md   one skill

The folder lies in ORCHESTRATOR_HOME and only this process's user can look into it. It is removed however the call ends; what a killed
process leaves behind is found by `list_leftover_runs`.
"""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from uuid import UUID

import orjson
from django.conf import settings
from django.db.models import Case, F, Q, QuerySet, TextField, Value, When

from agents.contracts import AdapterSettings, AgentRequest, ContextFile, Skills, SkillSummary
from agents.exceptions import InputUnavailable
from agents.models import Adapter, Skill, SkillKind, skill_key_validator


@dataclass(frozen=True, slots=True)
class KnownSkill:
    """One of them, as it was when it was read. `content` is empty where only what there is was asked for."""

    id: UUID
    kind: str
    key: str
    name: str
    description: str
    version: int
    content: str

    @property
    def path(self) -> str:
        """Where its text is, below the folder of a run."""
        return f"{self.key}/SKILL.md"


@dataclass(frozen=True, slots=True)
class Knowledge:
    """The context and the skills of one role at one tenant, in the order of their keys."""

    context: tuple[KnownSkill, ...] = ()
    skills: tuple[KnownSkill, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.context or self.skills)

    @property
    def versions(self) -> tuple[str, ...]:
        """What tells this knowledge from another. A skill that was deleted and made again is another one."""
        return tuple(f"{skill.id}:{skill.version}" for skill in (*self.context, *self.skills))

    def as_skills(self, address: str, *, as_files: bool) -> Skills:
        """As its agent is told: a skill is read at `{address}{key}/`, and `as_files` also below `AgentRequest.skills_dir`."""
        return Skills(
            context=tuple(ContextFile(skill.name, skill.content) for skill in self.context),
            manifest=tuple(
                SkillSummary(
                    key=skill.key,
                    name=skill.name,
                    description=skill.description,
                    version=skill.version,
                    url=f"{address}{skill.key}/",
                    path=skill.path if as_files else None,
                )
                for skill in self.skills
            ),
        )


NOTHING = Knowledge()


def read_knowledge(tenant_id: UUID, role: str, *, with_texts: bool) -> Knowledge:
    """What an agent of this role is told, in the caller's `tenant_scope`. The texts of skills only `with_texts`."""
    with_text = Q(kind__in=SkillKind.values if with_texts else [SkillKind.CONTEXT])
    text = Case(When(with_text, then=F("content")), default=Value(""), output_field=TextField())
    columns = ("id", "kind", "key", "name", "description", "version")
    rows = _of(tenant_id, role).order_by("key").values_list(*columns, text)
    found = [KnownSkill(*row) for row in rows]
    return Knowledge(
        context=tuple(skill for skill in found if skill.kind == SkillKind.CONTEXT),
        skills=tuple(skill for skill in found if skill.kind == SkillKind.SKILL),
    )


def find(tenant_id: UUID, role: str, key: str) -> Skill | None:
    """One skill in full, if an agent of this role may read it. In the caller's `tenant_scope`."""
    return _of(tenant_id, role).filter(kind=SkillKind.SKILL, key=key).first()


def _of(tenant_id: UUID, role: str) -> QuerySet[Skill]:
    rows: QuerySet[Skill] = Skill.objects.for_tenant(tenant_id)
    return rows.filter(Q(roles=[]) | Q(roles__contains=[role]), enabled=True)


logger = logging.getLogger(__name__)

OWN_ONLY = 0o700


def is_local(settings: AdapterSettings) -> bool:
    """Whether the agent runs on this machine, so that it can read files."""
    return settings.adapter in (Adapter.INLINE, Adapter.CLI)


@contextmanager
def write_files(request: AgentRequest, knowledge: Knowledge) -> Iterator[AgentRequest]:
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


def list_leftover_runs() -> set[UUID]:
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
            (folder / "CONTEXT.md").write_text(_join_files(knowledge.context), encoding="utf-8")
        manifest = orjson.dumps(request.skills.manifest, option=orjson.OPT_INDENT_2)
        (folder / "manifest.json").write_bytes(manifest)
        for skill in knowledge.skills:
            skill_key_validator(skill.key)  # it becomes a name of a folder, so it is not taken on trust
            file = folder / skill.path
            file.parent.mkdir(mode=OWN_ONLY)
            file.write_text(skill.content, encoding="utf-8")
    except OSError as error:
        raise InputUnavailable(
            f"The skills could not be laid out as files: {error.strerror}.", code="skills_unavailable"
        ) from error


def _join_files(context: tuple[KnownSkill, ...]) -> str:
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
