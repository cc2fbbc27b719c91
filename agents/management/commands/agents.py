"""`manage.py agents list|show|deploy|promote|rollback|check`: the registry of agents from the command line."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.core.exceptions import ValidationError
from django.core.management.base import CommandError, CommandParser

from agents import deployments, health, registry, semantic_versions
from agents.api.configurations import error_of_address
from agents.models import Agent, AgentVersionDeployment
from tenants import audit
from tenants.management.base import ManagementCommand, UsageError
from tenants.management.tables import write_facts, write_table

Environment = AgentVersionDeployment.Environment


class Command(ManagementCommand):
    help = "List agents, deploy, promote and roll back their versions, and check whether they can be reached."

    def add_arguments(self, parser: CommandParser) -> None:
        verbs = parser.add_subparsers(
            dest="verb", required=True, metavar="list|show|deploy|promote|rollback|check"
        )
        verbs.add_parser("list", help="every agent with its version in production and its health")
        show = verbs.add_parser("show", help="one agent: its versions, newest first, and what needs it")
        deploy = verbs.add_parser("deploy", help="deploy a version to an environment")
        promote = verbs.add_parser("promote", help="promote a deployed version to production")
        rollback = verbs.add_parser("rollback", help="return to the previous version in production")
        check = verbs.add_parser(
            "check",
            help="check endpoints now, and find schedules and pipelines that refer to missing agents or pipelines",
        )
        for verb in (show, deploy, promote, rollback):
            verb.add_argument("role", metavar="ROLE")
        for verb in (deploy, promote):
            verb.add_argument("version", metavar="VERSION", help="semantic, such as 1.4.0")
        deploy.add_argument("--environment", choices=Environment.values, default=Environment.STAGING.value)
        deploy.add_argument(
            "--endpoint", default="", help="the address of this version; else the agent's own endpoint"
        )
        check.add_argument("roles", metavar="ROLE", nargs="*", help="only these; else all")
        check.add_argument("--references", action="store_true", help="only check references; call no agents")

    def handle(self, *args: Any, verb: str, **options: Any) -> None:
        getattr(self, f"_{verb}")(**options)

    def _list(self, **options: Any) -> None:
        agents = Agent.objects.annotate(version=deployments.of_row_in_production().values("version"))
        rows = [
            (agent.role, agent.version, agent.adapter, _state(agent), agent.health, agent.endpoint)
            for agent in agents.order_by("role")
        ]
        write_table(self.stdout, ("role", "version", "adapter", "state", "health", "endpoint"), rows)

    def _show(self, role: str, **options: Any) -> None:
        agent = _agent(role)
        checked = (
            f", checked at {agent.health_checked_at:%Y-%m-%d %H:%M:%SZ}" if agent.health_checked_at else ""
        )
        facts = (
            ("role", agent.role),
            ("name", agent.name),
            ("state", _state(agent)),
            ("endpoint", agent.endpoint),
            ("health", f"{agent.health}{checked}. {agent.health_detail}".strip()),
            ("needed by", registry.references_in_words(registry.references_to(role)) or "nothing"),
        )
        write_facts(self.stdout, facts)
        self.stdout.write("")
        rows = [_row_of(deployment) for deployment in deployments.history(role)]
        write_table(self.stdout, ("version", "environment", "deployed", "by", "replaced", "endpoint"), rows)

    def _deploy(self, role: str, version: str, environment: str, endpoint: str, **options: Any) -> None:
        agent = _agent(role)
        if error := semantic_versions.error_of(version):
            raise UsageError(f"VERSION {error}")
        try:
            AgentVersionDeployment._meta.get_field("endpoint").clean(endpoint, None)
        except ValidationError as refusal:  # it is too long
            raise UsageError(f"--endpoint: {refusal.messages[0]}") from refusal
        if endpoint and (error := error_of_address(agent.adapter, endpoint)):
            raise UsageError(f"--endpoint: {error}")
        deployments.deploy(
            role, version, environment, endpoint=endpoint, actor=audit.actor_of_command("agents").label
        )
        _record_operation("deploy", role, version=version, environment=environment)
        self.stdout.write(f"{role} {version} is in {environment}")

    def _promote(self, role: str, version: str, **options: Any) -> None:
        _agent(role)
        deployment = next((each for each in deployments.history(role) if each.version == version), None)
        if deployment is None:
            known = sorted(
                {each.version for each in deployments.history(role)},
                key=semantic_versions.Precedence,
                reverse=True,
            )
            raise CommandError(
                f"{version} of {role} was never deployed; known versions: {', '.join(known) or 'none'}. "
                f"First: manage.py agents deploy {role} {version}"
            )
        deployments.promote(role, deployment.pk, actor=audit.actor_of_command("agents").label)
        _record_operation("promote", role, version=version)
        self.stdout.write(f"{role} {version} is in production")

    def _rollback(self, role: str, **options: Any) -> None:
        _agent(role)
        restored = deployments.roll_back(role, actor=audit.actor_of_command("agents").label)
        _record_operation("rollback", role, version=restored.version)
        self.stdout.write(f"{role} {restored.version} is in production")

    def _check(self, roles: Sequence[str], **options: Any) -> None:
        """Exits with 1 when an agent cannot be reached, or something refers to a missing agent or pipeline."""
        for role in roles:
            _agent(role)
        checked = [] if options["references"] else health.check(roles or None)
        rows = [(agent.role, _describe_health(agent), agent.health_detail) for agent in checked]
        if not options["references"]:
            write_table(self.stdout, ("role", "health", "detail"), rows)
        broken = registry.list_broken_references()
        for error in broken:
            self.stdout.write(f"broken: {error}")
        if not broken:
            self.stdout.write("Every schedule and pipeline refers to existing agents and pipelines.")
        if broken or any(agent.health_failures for agent in checked):
            raise SystemExit(1)


def _agent(role: str) -> Agent:
    agent = Agent.objects.filter(role=role).first()
    if agent is None:
        raise CommandError(f"There is no agent {role!r}. See: manage.py agents list")
    return agent


def _state(agent: Agent) -> str:
    return "off" if not agent.enabled else "paused" if agent.paused else "on"


def _describe_health(agent: Agent) -> str:
    """Describe the result of the last check. One failure does not make an agent unhealthy."""
    return agent.health if not agent.health_failures else f"{agent.health} ({agent.health_failures} failed)"


def _row_of(deployment: AgentVersionDeployment) -> tuple[str, ...]:
    at = deployment.replaced_at
    return (
        deployment.version,
        deployment.environment,
        f"{deployment.deployed_at:%Y-%m-%d %H:%M}",
        deployment.deployed_by,
        "" if at is None else f"{at:%Y-%m-%d %H:%M} {deployment.replaced_by}",
        deployment.endpoint,
    )


def _record_operation(operation: str, role: str, **detail: str) -> None:
    audit.record_command(f"agents {operation}", about=("agents", role), detail=detail)
