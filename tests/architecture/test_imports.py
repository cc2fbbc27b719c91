"""Imports point one way, and modules that are dangerous to use have few users. Each list of users is exact."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.architecture import tree

RECOVER = "activities.management.commands.recover"  # does by hand, once, what the leader does all the time
#: Modules and packages that only these users may import, with the reason.
OWNERS: dict[str, tuple[set[str], str]] = {
    "activities.publishing": (
        {"activities.relay", "activities.background_tasks", "activities.maintenance", RECOVER},
        "Publishing needs a grant, except for hints, which carry no work: the relay gets grants, the leader finds forgotten ones.",
    ),
    "opentelemetry": ({"tenants.tracing.spans"}, "It is an extra, without which everything else works."),
    "activities.dispatch": ({"activities.tasks"}, "Agents run from a message and from nowhere else."),
    "activities.maintenance.scheduler": (
        {"activities.maintenance"},
        "It is started once per process, by the process.",
    ),
    "activities.maintenance.leader": (
        {"activities.maintenance"},
        "Jobs get the term that they run in; nothing else campaigns for the lease.",
    ),
    "activities.worker": ({"orchestrator.celery"}, "It is started once per process, by the process."),
    "activities.admission.rebuilding": (
        {"activities.maintenance", "activities.queue_stats", RECOVER},
        "Only the leader may rebuild. Queue statistics ask whether admission is open.",
    ),
    "agents.adapters": (
        {"agents.runner", "agents.batches", "agents.api.configurations"},
        "The runner, or the code of batches, checks every answer of an adapter. The form of a setting lists their names.",
    ),
    "agents.runner": ({"activities.dispatch"}, "It is called where no transaction is open."),
    "httpx2": (
        {"agents.outbound", "orchestrator.demo", "orchestrator.mcp"},
        "One guarded client calls addresses that others may choose. The demo and the MCP server call our own API.",
    ),
    "jinja2": ({"activities.execution.prompt"}, "Prompt templates are ours alone, and sandboxed."),
    "markdown_it": ({"console.markdown"}, "Its output for hostile text is cleaned in the same place."),
    "pymongo": (
        {
            "tenants.outages",
            "activities.outputs",
            "activities.run_logs",
            "activities.maintenance",
            "orchestrator.embedded",
            RECOVER,
            "orchestrator.management.commands.export_tenant",
            "orchestrator.management.commands.offboard_tenant",
        },
        "One module reads and writes outputs, one the logs of runs. The others use its errors or check whether the server runs.",
    ),
    "cryptography": ({"agents.credentials"}, "Secrets are sealed in one place."),
}


def test_the_layers_of_the_apps_are_a_contract() -> None:
    contracts = _settings()["contracts"]

    assert any(
        contract["type"] == "layers" and tuple(contract["layers"]) == tree.APPS for contract in contracts
    )


def test_every_import_contract_holds() -> None:
    program = Path(sys.executable).with_name("lint-imports")

    check = subprocess.run(
        [program, "--no-cache"], cwd=tree.ROOT, capture_output=True, text=True, check=False
    )

    assert check.returncode == 0, check.stdout[-4000:] + check.stderr


def test_every_app_is_covered_by_the_contracts() -> None:
    assert set(_settings()["root_packages"]) == set(tree.APPS)


@pytest.mark.parametrize("owned", OWNERS)
def test_modules_with_an_owner_are_imported_by_their_named_users_only(owned: str) -> None:
    users, reason = OWNERS[owned]

    importers = {name for name in tree.users_of(owned) if not tree.is_in(name, {owned})}

    strangers = {name for name in importers if not tree.is_in(name, users)}
    assert not strangers, f"{sorted(strangers)} import {owned}. {reason}"
    idle = {user for user in users if not any(tree.is_in(name, {user}) for name in importers)}
    assert not idle, f"{sorted(idle)} no longer import {owned}: remove them from the list"


def test_only_the_stages_of_activities_use_admission() -> None:
    strangers = {
        name for name in tree.users_of("activities.admission") if not tree.is_in(name, {"activities"})
    }

    assert not strangers, f"{sorted(strangers)}: the apps above ask activities, not admission."


def test_only_intake_points_and_the_governor_use_the_limiter() -> None:
    users = {
        "tenants.limiter", "tenants.api", "tenants.login_throttle", "activities.execution.agent_tools", "agents.governor",
        "agents.outbound.budget", "console.inbox.slack", "tenants.events.connection_limits",
    }  # fmt: skip

    assert not {name for name in tree.users_of("tenants.limiter") if not tree.is_in(name, users)}


def test_no_function_imports_from_an_app_to_break_an_import_cycle() -> None:
    """Only Celery's application and Django's app configurations may, because they are imported before apps are ready."""
    late = {
        module.name
        for module in tree.modules()
        for function in module.functions()
        if any(_imports_an_app(node) for node in tree.ast.walk(function))
    }

    assert late <= {"orchestrator.celery"} | {f"{app}.apps" for app in tree.APPS}


def _imports_an_app(node: object) -> bool:
    if isinstance(node, tree.ast.ImportFrom):
        return (node.module or "").partition(".")[0] in tree.APPS
    return isinstance(node, tree.ast.Import) and any(
        alias.name.partition(".")[0] in tree.APPS for alias in node.names
    )


def _settings() -> dict[str, list[dict[str, list[str]]]]:
    configuration = tomllib.loads((tree.ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    settings: dict[str, list[dict[str, list[str]]]] = configuration["tool"]["importlinter"]
    return settings
