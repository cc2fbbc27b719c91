"""Times that are compared with stored ones come from PostgreSQL's clock. Users of the machine's clock are listed with the reason."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tests.architecture import tree

USES_MACHINE_CLOCK = {
    "activities.dispatch": "when a span began, for a trace",
    "agents.command_line.workspaces": "age of files of this machine",
    "agents.retention": "age of files of this machine",
    "agents.governor.limits": "dates of a provider's answer that names no date of its own",
    "agents.governor.providers": "which providers were called in the last two days, for a list",
    "agents.outbound.client": "a date that an agent or provider names, by the clock that we share with it",
    "console.templatetags.console": "words such as `3 minutes ago`, for people",
    "tenants.clock": "messages of a process that has not read the time from PostgreSQL yet",
    "tenants.identifiers": "ids that sort roughly in the order of their creation",
    "tenants.tracing.spans": "when a span ended, for a trace",
}

#: The last two parts of each call that reads the clock of the machine.
_CLOCKS = {
    "datetime.now", "datetime.utcnow", "datetime.today", "date.today", "timezone.now", "timezone.localtime", "timezone.localdate",
    "time.time", "time.time_ns", "time.gmtime", "time.localtime",
}  # fmt: skip
_CALLED = {name.rpartition(".")[2] for name in _CLOCKS}


def test_only_named_modules_ask_the_clock_of_the_machine() -> None:
    users = {
        module.name for module in tree.modules() if _is_checked(module.name) and any(_clock_calls(module))
    }

    assert users - USES_MACHINE_CLOCK.keys() == set(), (
        "compare with `tenants.clock.now()`, or use `now()` in the statement"
    )
    assert USES_MACHINE_CLOCK.keys() - users == set(), "no longer so, remove them from the list"


def _is_checked(name: str) -> bool:
    """Programs that start and watch processes of one machine may use its clock."""
    return not tree.is_in(name, {"orchestrator"}) and ".migrations" not in name


def _clock_calls(module: tree.Module) -> Iterator[str]:
    for node in module.nodes:
        if isinstance(node, ast.Attribute) and node.attr in _CALLED:
            name = f"{ast.unparse(node.value).rpartition('.')[2]}.{node.attr}"
            if name in _CLOCKS:
                yield name
