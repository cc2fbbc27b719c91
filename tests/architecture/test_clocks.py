"""What is compared with a stored time comes from PostgreSQL's clock. Who may ask the machine's is named here, with the reason."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tests.architecture import tree

ASKS_THE_MACHINE = {
    "activities.dispatch": "when a span began, for a trace",
    "agents.command_line.workspaces": "age of files of this machine",
    "agents.retention": "age of files of this machine",
    "agents.governor.limits": "dates of a provider's answer that names no date of its own",
    "agents.governor.providers": "which providers were called in the last two days, for a list",
    "agents.outbound.client": "a date that an agent or provider names, by the clock that we share with it",
    "agents.webhook_signing": "signatures are checked by others, against their own clocks, with five minutes of tolerance",
    "console.templatetags.console": "words such as `3 minutes ago`, for people",
    "pipelines.models.deliverable": "the month that a form proposes",
    "tenants.identifiers": "ids that sort about in the order of their making",
    "tenants.tracing.spans": "when a span ended, for a trace",
}

#: By the last two parts of what is called.
_CLOCKS = {
    "datetime.now", "datetime.utcnow", "datetime.today", "date.today", "timezone.now", "timezone.localtime", "timezone.localdate",
    "time.time", "time.time_ns", "time.gmtime", "time.localtime",
}  # fmt: skip
_CALLED = {name.rpartition(".")[2] for name in _CLOCKS}


def test_only_named_modules_ask_the_clock_of_the_machine() -> None:
    found = {module.name for module in tree.modules() if _is_ours(module.name) and any(_asked(module))}

    assert found - ASKS_THE_MACHINE.keys() == set(), (
        "compare with `tenants.clock.now()`, or let the statement say `now()`"
    )
    assert ASKS_THE_MACHINE.keys() - found == set(), "no longer so, take them off the list"


def _is_ours(name: str) -> bool:
    """Programs that start and watch processes of one machine go by its clock."""
    return not tree.is_in(name, {"orchestrator"}) and ".migrations" not in name


def _asked(module: tree.Module) -> Iterator[str]:
    for node in module.nodes:
        if isinstance(node, ast.Attribute) and node.attr in _CALLED:
            name = f"{ast.unparse(node.value).rpartition('.')[2]}.{node.attr}"
            if name in _CLOCKS:
                yield name
