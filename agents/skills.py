"""The knowledge of a tenant's agents: context about the client, which they receive in full, and skills, which they receive as a list.

It is read for every run, so that the agent's knowledge always matches the digest in its session. Tenants without any cost no query,
because the cached settings of the role say so.

Agents on this machine get the skills of a run as files, in a folder that exists only during the call.

    runs/<run id>/CONTEXT.md       the client's context, in full
    runs/<run id>/manifest.json    the list of skills, with their paths
    runs/<run id>/<key>/SKILL.md   one skill

The folder is in ORCHESTRATOR_HOME, and only this process's user can read it. It is removed however the call ends;
`list_leftover_runs` finds the folders of killed processes.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from uuid import UUID

import orjson
from django.conf import settings
from django.db.models import Case, F, Q, QuerySet, TextField, Value, When

from agents.contracts import AdapterSettings, AgentRequest, ContextFile, Skills, SkillSummary
from agents.exceptions import InputUnavailable
from agents.local_files import OWN_ONLY, delete_folder
from agents.models import Adapter, Skill, SkillKind, skill_key_validator


@dataclass(frozen=True, slots=True)
class KnownSkill:
    """A skill or context file at the time of reading. `content` is empty if only the list was requested."""

    id: UUID
    kind: str
    key: str
    name: str
    description: str
    version: int
    content: str

    @property
    def path(self) -> str:
        """The path of its text, below the folder of a run."""
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
        """The identity of this knowledge. A skill that was deleted and created again counts as another one."""
        return tuple(f"{skill.id}:{skill.version}" for skill in (*self.context, *self.skills))

    def as_skills(self, address: str, *, as_files: bool) -> Skills:
        """Return the skills for the agent, which reads one at `{address}{key}/`, and `as_files` also below `AgentRequest.skills_dir`."""
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
    """Return the knowledge of an agent of this role, with the texts of skills only `with_texts`. Must run in a `tenant_scope`."""
    with_text = Q(kind__in=SkillKind.values if with_texts else [SkillKind.CONTEXT])
    text = Case(When(with_text, then=F("content")), default=Value(""), output_field=TextField())
    columns = ("id", "kind", "key", "name", "description", "version")
    rows = _skills_of(tenant_id, role).order_by("key").values_list(*columns, text)
    known = [KnownSkill(*row) for row in rows]
    return Knowledge(
        context=tuple(skill for skill in known if skill.kind == SkillKind.CONTEXT),
        skills=tuple(skill for skill in known if skill.kind == SkillKind.SKILL),
    )


def find(tenant_id: UUID, role: str, key: str) -> Skill | None:
    """Return one skill in full, if an agent of this role may read it. Must run in a `tenant_scope`."""
    return _skills_of(tenant_id, role).filter(kind=SkillKind.SKILL, key=key).first()


def _skills_of(tenant_id: UUID, role: str) -> QuerySet[Skill]:
    rows: QuerySet[Skill] = Skill.objects.for_tenant(tenant_id)
    return rows.filter(Q(roles=[]) | Q(roles__contains=[role]), enabled=True)


logger = logging.getLogger(__name__)


def is_local(settings: AdapterSettings) -> bool:
    """Whether the agent runs on this machine, so that it can read files."""
    return settings.adapter in (Adapter.INLINE, Adapter.CLI)


@contextmanager
def write_files(request: AgentRequest, knowledge: Knowledge) -> Iterator[AgentRequest]:
    """Yield the request with `skills_dir`, a folder that exists during the block. It is unchanged for remote agents, and without knowledge.

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
    """Return the runs with folders on this machine. Those of runs that are not live may be removed."""
    try:
        names = os.listdir(_home())
    except FileNotFoundError:
        return set()
    return {run_id for name in names if (run_id := _as_run_id(name)) is not None}


def remove(run_id: UUID) -> None:
    """Remove the folder of a run, if there is one. Never fails."""
    if not delete_folder(_folder_of(run_id)):
        logger.warning(
            "Files of a run could not be removed", extra={"action": "skills_left", "run": str(run_id)}
        )


def _write(folder: Path, request: AgentRequest, knowledge: Knowledge) -> None:
    try:
        folder.parent.mkdir(mode=OWN_ONLY, parents=True, exist_ok=True)
        folder.mkdir(mode=OWN_ONLY)
        if knowledge.context:
            sections = (f"# {file.name}\n\n{file.content.strip()}\n" for file in knowledge.context)
            (folder / "CONTEXT.md").write_text("\n".join(sections), encoding="utf-8")
        manifest = orjson.dumps(request.skills.manifest, option=orjson.OPT_INDENT_2)
        (folder / "manifest.json").write_bytes(manifest)
        for skill in knowledge.skills:
            skill_key_validator(skill.key)  # it becomes the name of a folder, so it must be checked
            file = folder / skill.path
            file.parent.mkdir(mode=OWN_ONLY)
            file.write_text(skill.content, encoding="utf-8")
    except OSError as error:
        raise InputUnavailable(
            f"The skills could not be written to files: {error.strerror}.", code="skills_unavailable"
        ) from error


def _home() -> Path:
    return Path(settings.ORCHESTRATOR_HOME) / "runs"


def _folder_of(run_id: UUID) -> Path:
    return _home() / str(run_id)


def _as_run_id(name: str) -> UUID | None:
    try:
        run_id = UUID(name)
    except ValueError:
        return None
    return run_id if str(run_id) == name else None
