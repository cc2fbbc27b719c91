"""What a tenant's agents may know beside their task: the client's context, given in full, and skills, of which they see what there is.

Read anew for every run, so that what an agent is told and the digest of it that its session keeps are the same. A tenant without any
pays nothing: that there are none is remembered with the settings of the role.
"""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from django.db.models import Case, F, Q, QuerySet, TextField, Value, When

from agents.contracts import ContextFile, Skills, SkillSummary
from agents.models import Skill, SkillKind


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

    def told(self, address: str, *, as_files: bool) -> Skills:
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


def has_any(tenant_id: UUID, role: str) -> bool:
    """Whether an agent of this role is told anything. In the caller's `tenant_scope`."""
    return _of(tenant_id, role).exists()


def known_to(tenant_id: UUID, role: str, *, with_texts: bool) -> Knowledge:
    """What an agent of this role is told, in the caller's `tenant_scope`. The texts of skills only `with_texts`."""
    wanted = Q(kind__in=SkillKind.values if with_texts else [SkillKind.CONTEXT])
    text = Case(When(wanted, then=F("content")), default=Value(""), output_field=TextField())
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
