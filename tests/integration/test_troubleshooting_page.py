"""docs/troubleshooting.md knows every code, state and identifier that the program can show, and no other."""

from __future__ import annotations

import ast
import re

import pytest

from activities import wait_reasons
from activities.api.serializers import WhySerializer
from activities.maintenance.invariants import LIVENESS, SAFETY
from agents import exceptions
from agents.models import Health
from console import health
from tests.architecture import tree

PAGE = (tree.ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
SECTIONS = dict(re.findall(r"^## (.+)\n([\s\S]*?)(?=^## |\Z)", PAGE, re.MULTILINE))


def told(section: str) -> set[str]:
    """What stands in the first column of a section's tables."""
    rows = re.findall(r"^\| (.+?) \|", SECTIONS[section], re.MULTILINE)
    return {word for row in rows for word in re.findall(r"`([^`]+)`", row)}


def _code_in(assignment: ast.Assign) -> list[ast.expr]:
    """What it gives the variable `code`."""
    given = []
    for target in assignment.targets:
        names, values = [target], [assignment.value]
        if isinstance(target, ast.Tuple) and isinstance(assignment.value, ast.Tuple):
            names, values = target.elts, assignment.value.elts
        given += [v for n, v in zip(names, values, strict=True) if isinstance(n, ast.Name) and n.id == "code"]
    return given


def reasons_in(module: tree.Module) -> set[str]:
    """Every code that the module gives a `Waiting`: in the call, by way of a variable `code`, and by way of its tables."""
    given = [call.args[0] for call in module.calls() if tree.called_name(call) == "Waiting" and call.args]
    given += [
        each for node in ast.walk(module.syntax) if isinstance(node, ast.Assign) for each in _code_in(node)
    ]
    codes = {
        part.value
        for argument in given
        for part in ast.walk(argument)
        if isinstance(part, ast.Constant) and isinstance(part.value, str)
    }
    return codes | {code for code, _ in wait_reasons._HELD_BACK.values()} | set(wait_reasons._CAPPED.values())


def subclasses(kind: type) -> set[type]:
    return {kind, *(each for direct in kind.__subclasses__() for each in subclasses(direct))}


def test_it_tells_every_reason_for_which_work_waits_and_no_other() -> None:
    (module,) = (each for each in tree.modules() if each.name == "activities.wait_reasons")

    assert told("Work waits") == reasons_in(module)


def test_it_tells_every_reason_that_the_api_promises() -> None:
    promised = str(WhySerializer().fields["code"].help_text)

    assert set(re.findall(r"[a-z_]+", promised)) - {"or"} == told("Work waits")


def test_it_tells_every_code_with_which_an_agents_run_can_fail() -> None:
    codes = {
        kind.code  # type: ignore[attr-defined]
        for kind in subclasses(exceptions.AgentError)
        if not kind.__module__.startswith("agents.api") and not issubclass(kind, exceptions.RegistryError)
    }
    given = {
        keyword.value.value
        for module in tree.modules()
        if module.name.startswith(("agents.adapters", "agents.outbound"))
        for call in module.calls()
        for keyword in call.keywords
        if keyword.arg == "code"
        and isinstance(keyword.value, ast.Constant)
        and "Retryable" in tree.called_name(call)
    }

    assert codes | given <= told("Work failed")


@pytest.mark.parametrize("name", sorted(health.CONSEQUENCES))
def test_it_tells_what_each_server_means_when_it_is_away(name: str) -> None:
    assert name in told("Health")


def test_it_tells_every_state_that_a_server_or_an_agent_can_be_in() -> None:
    assert {"failing", "silent", "behind", "closed", *Health.values} <= told("Health")


def test_it_tells_every_sentence_that_the_overview_gives_as_a_reason() -> None:
    (overview,) = (each for each in tree.modules() if each.name == "console.overview")
    quoted = " ".join(re.findall(r"\| ([^|]+) \|", SECTIONS["Health"]))

    for words in (
        "No worker serves",
        "worker processes have",
        "outputs wait",
        "for the budget",
        "is paused or disabled",
        "accepts no requests for now",
        "failed permanently",
        "blocked until a person resolves the blocker",
        "for people",
        "All is well, but no worker runs.",
    ):
        assert words in overview.text
        assert words in quoted
    assert overview.text.count("        yield ") == 7, (
        "a reason more or less: tell it in docs/troubleshooting.md"
    )


def test_it_tells_every_identifier_of_the_checks_and_no_other() -> None:
    ids = {found for module in tree.modules() for found in re.findall(r'\bid="(\w+\.[EWI]\d+)"', module.text)}

    assert ids
    assert {word for word in told("Checks") if re.fullmatch(r"\w+\.[EWI]\d+", word)} == ids


def test_it_tells_every_invariant_with_its_meaning() -> None:
    shown = dict(re.findall(r"^\| `(I\d\d)` \| (.+) \|$", PAGE, re.MULTILINE))

    assert shown == SAFETY | LIVENESS
