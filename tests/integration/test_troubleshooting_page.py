"""docs/troubleshooting.md lists every code, state and identifier that the program can show, and no others."""

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


def listed(section: str) -> set[str]:
    """The code words in the first column of a section's tables."""
    rows = re.findall(r"^\| (.+?) \|", SECTIONS[section], re.MULTILINE)
    return {word for row in rows for word in re.findall(r"`([^`]+)`", row)}


def _code_in(assignment: ast.Assign) -> list[ast.expr]:
    """The values that it assigns to the variable `code`."""
    expressions = []
    for target in assignment.targets:
        names, values = [target], [assignment.value]
        if isinstance(target, ast.Tuple) and isinstance(assignment.value, ast.Tuple):
            names, values = target.elts, assignment.value.elts
        expressions += [
            v for n, v in zip(names, values, strict=True) if isinstance(n, ast.Name) and n.id == "code"
        ]
    return expressions


def reasons_in(module: tree.Module) -> set[str]:
    """Every code that the module passes to `Waiting`: as an argument, in a variable `code`, or from its tables."""
    expressions = [
        call.args[0] for call in module.calls() if tree.called_name(call) == "Waiting" and call.args
    ]
    expressions += [
        each for node in ast.walk(module.syntax) if isinstance(node, ast.Assign) for each in _code_in(node)
    ]
    codes = {
        part.value
        for argument in expressions
        for part in ast.walk(argument)
        if isinstance(part, ast.Constant) and isinstance(part.value, str)
    }
    return codes | {code for code, _ in wait_reasons._HELD_BACK.values()} | set(wait_reasons._CAPPED.values())


def subclasses(kind: type) -> set[type]:
    return {kind, *(each for direct in kind.__subclasses__() for each in subclasses(direct))}


def test_the_page_lists_exactly_the_reasons_for_waiting() -> None:
    (module,) = (each for each in tree.modules() if each.name == "activities.wait_reasons")

    assert listed("Work waits") == reasons_in(module)


def test_the_api_documents_exactly_the_listed_reasons() -> None:
    promised = str(WhySerializer().fields["code"].help_text)

    assert set(re.findall(r"[a-z_]+", promised)) - {"or"} == listed("Work waits")


def test_the_page_lists_every_error_code_of_runs() -> None:
    kinds = [
        kind
        for kind in (exceptions.AgentError, *subclasses(exceptions.AgentError))
        if not kind.__module__.startswith("agents.api") and not issubclass(kind, exceptions.RegistryError)
    ]
    own = {kind.code for kind in kinds if kind is not exceptions.AgentError}  # type: ignore[attr-defined]
    names = {kind.__name__ for kind in kinds}
    in_calls = {
        keyword.value.value
        for module in tree.modules()
        if module.name.startswith(("agents.", "activities.dispatch"))
        for call in module.calls()
        for keyword in call.keywords
        if keyword.arg == "code"
        and isinstance(keyword.value, ast.Constant)
        and tree.called_name(call) in names
    }

    missing = sorted((own | in_calls) - listed("Work failed"))
    assert not missing, ", ".join(missing)


@pytest.mark.parametrize("name", sorted(health.CONSEQUENCES))
def test_the_page_lists_every_server_that_can_be_unreachable(name: str) -> None:
    assert name in listed("Health")


def test_the_page_lists_every_state_of_servers_and_agents() -> None:
    assert {"failing", "silent", "behind", "closed", *Health.values} <= listed("Health")


def test_the_page_quotes_every_reason_that_the_overview_shows() -> None:
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
        "add a new reason to docs/troubleshooting.md and to this test"
    )


def test_the_page_lists_exactly_the_identifiers_of_the_system_checks() -> None:
    ids = {
        identifier
        for module in tree.modules()
        for identifier in re.findall(r'\bid="(\w+\.[EWI]\d+)"', module.text)
    }

    assert ids
    assert {word for word in listed("Checks") if re.fullmatch(r"\w+\.[EWI]\d+", word)} == ids


def test_the_page_lists_exactly_the_invariants_with_their_meaning() -> None:
    documented = dict(re.findall(r"^\| `(I\d\d)` \| (.+) \|$", PAGE, re.MULTILINE))

    assert documented == SAFETY | LIVENESS


def test_the_statement_of_an_invariant_begins_with_its_meaning() -> None:
    statements = (tree.ROOT / "activities" / "sql" / "invariants").glob("i*.sql")
    titles = {path: path.read_text(encoding="utf-8").splitlines()[0] for path in statements}

    assert titles == {
        path: f"-- {path.stem.upper()}  {(SAFETY | LIVENESS)[path.stem.upper()]}." for path in titles
    }
