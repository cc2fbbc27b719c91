"""Deployments: the versions of an agent in each environment. This is the only module that writes their table.

Every change is one transaction and a compare-and-set on the row that was read as the one in production. Of two concurrent changes one
succeeds and the other gets an error; there are never two versions in production, and never none during a change. Replaced versions stay
as history. Current runs keep the version that they were claimed with; new runs get the new one within a second. Promoting ends no
sessions: a version that must not continue the conversations of its predecessor needs other instructions, which begin new sessions.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any
from uuid import UUID

from django.db import IntegrityError, transaction
from django.db.models import F, OuterRef, QuerySet
from django.db.models.functions import Now

from agents import registry, semantic_versions
from agents.exceptions import (
    DeploymentConflict,
    NotFound,
    RegistryError,
    VersionInvalid,
)
from agents.models import Agent, AgentVersionDeployment
from tenants.context import current_alias

Environment = AgentVersionDeployment.Environment


def in_production(role: str) -> AgentVersionDeployment | None:
    """Return the version in production, if any."""
    return _in_production().filter(agent_id=role).first()


def serving(roles: Collection[str]) -> dict[str, AgentVersionDeployment]:
    """Return the versions in production of these roles, by role. Roles without one are omitted."""
    return {each.agent_id: each for each in _in_production().filter(agent_id__in=roles)}


def of_row_in_production() -> QuerySet[AgentVersionDeployment]:
    """Return the version in production of each row, for subqueries of queries of agents."""
    return _in_production().filter(agent=OuterRef("role"))


def history(role: str) -> list[AgentVersionDeployment]:
    return list(AgentVersionDeployment.objects.filter(agent_id=role).order_by("-deployed_at", "-id"))


def deploy(
    role: str, version: str, environment: str, *, actor: str, endpoint: str = ""
) -> AgentVersionDeployment:
    """Deploy a version to an environment. In production it replaces the current version, elsewhere only its own earlier deployment.

    Raises `NotFound`, `VersionInvalid`, `DeploymentConflict`, or `RegistryError` if it is in production already.
    """
    if error := semantic_versions.error_of(version):
        raise VersionInvalid(error)
    if not Agent.objects.filter(role=role).exists():
        raise NotFound("agent", role)
    new = AgentVersionDeployment(
        agent_id=role,
        version=version,
        environment=Environment(environment),
        endpoint=endpoint,
        deployed_by=actor,
    )
    if new.environment == Environment.PRODUCTION:
        new.previous = in_production(role)
        return _put_into_production(new, current=new.previous)
    with _translate_conflicts(), transaction.atomic(using=current_alias()):
        same = _current().filter(agent_id=role, version=version, environment=new.environment)
        same.update(replaced_at=Now(), replaced_by=actor)
        return _save(new)


def promote(role: str, deployment_id: UUID, *, actor: str) -> AgentVersionDeployment:
    """Promote this deployment's version, with its endpoint, to production. Works for former deployments as well.

    Raises `NotFound`, `RegistryError` if it is in production already, or `DeploymentConflict` when another version was promoted meanwhile.
    """
    current = in_production(role)
    deployment = AgentVersionDeployment.objects.filter(pk=deployment_id, agent_id=role).first()
    if deployment is None:
        raise NotFound(f"deployment of the agent {role!r}", deployment_id)
    new = _copy(deployment, actor, promoted_from=deployment, previous=current)
    return _put_into_production(new, current=current)


def roll_back(role: str, *, actor: str) -> AgentVersionDeployment:
    """Return to the previous version in production. A second rollback returns to the one before that, and so on.

    Raises `RegistryError` if there was none, or `DeploymentConflict` when another version was promoted meanwhile.
    """
    current = in_production(role)
    target = current.previous if current else None
    if current is None or target is None:
        reason = f"{current.version} is the first" if current else "there is none yet"
        raise RegistryError(
            f"No version of {role!r} was in production before: {reason}. Deploy the version that you want and promote it.",
            code="nothing_to_roll_back_to",
        )
    new = _copy(target, actor, promoted_from=target, previous=target.previous)
    return _put_into_production(new, current=current)


def _put_into_production(
    new: AgentVersionDeployment, *, current: AgentVersionDeployment | None
) -> AgentVersionDeployment:
    """Replace the version `current` in production. Raises `DeploymentConflict` if it is no longer in production."""
    if current is not None and (current.version, current.endpoint) == (new.version, new.endpoint):
        raise RegistryError(f"{current.version} is in production already.", code="already_in_production")
    with _translate_conflicts(), transaction.atomic(using=current_alias()):
        if current is not None:
            replaced = _current().filter(pk=current.pk)
            if not replaced.update(replaced_at=Now(), replaced_by=new.deployed_by):
                raise DeploymentConflict(_CONFLICT)
        return _save(new)


def _save(new: AgentVersionDeployment) -> AgentVersionDeployment:
    new.save(force_insert=True)
    changes: dict[str, Any] = {"revision": F("revision") + 1}
    if new.environment == Environment.PRODUCTION:
        changes |= registry.UNCHECKED
    Agent.objects.filter(role=new.agent_id).update(**changes)
    new.refresh_from_db(fields=["deployed_at"])
    return new


def _copy(deployment: AgentVersionDeployment, actor: str, **more: Any) -> AgentVersionDeployment:
    return AgentVersionDeployment(
        agent_id=deployment.agent_id,
        version=deployment.version,
        environment=Environment.PRODUCTION,
        endpoint=deployment.endpoint,
        deployed_by=actor,
        **more,
    )


def _current() -> QuerySet[AgentVersionDeployment]:
    return AgentVersionDeployment.objects.filter(replaced_at__isnull=True)


def _in_production() -> QuerySet[AgentVersionDeployment]:
    return _current().filter(environment=Environment.PRODUCTION)


_CONFLICT = "Another version was promoted at the same time. Check which version is in production now, and decide again."


@contextmanager
def _translate_conflicts() -> Iterator[None]:
    """Raise `DeploymentConflict` when the unique constraint refuses the second of two versions for the same free place."""
    try:
        yield
    except IntegrityError as error:
        raise DeploymentConflict(_CONFLICT) from error
