"""Writes the house plan of docs/architecture.md from the modules' own first sentences: `python -m tests.architecture.house_plan`.

A test compares, so a module that is added, renamed or changes its promise is in the document or the suite is red.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.architecture import tree

DOCUMENT = tree.ROOT / "docs" / "architecture.md"

_SECTION = re.compile(
    r"(?P<begin><!-- generated: (?P<app>\w+) -->\n).*?(?P<end><!-- end of \w+ -->)", re.DOTALL
)
_SENTENCE = re.compile(r"(?<=[.!?])\s")
_DEMAND = re.compile(r" \((?:\d{3}-[\d.]+|[CD]\d+)\)")  # numbers of demands mean nothing to a newcomer

#: In the order of the flow. What is not named here follows in the order of the alphabet.
FLOW = {
    "activities": (
        "states models submission wakes admission relay publishing errands tasks dispatch leases prompt run_tokens results retry "
        "transitions status_guard signals approvals reviews blockers subtasks reassignment people cancellation deadletters alerts "
        "maintenance job_records promotion recovery workers waiting outputs selectors invariants"
    ),
    "agents": "models configuration routing sessions skills contracts runner adapters job answers well_formed outbound credentials",
    "pipelines": "definition graph models versions submission receivers progression revisions cancellation schedules periods picture",
    "tenants": (
        "models context outages row_security checks sql identifiers registration members tokens principals authentication middleware "
        "limiter channels signals"
    ),
    "orchestrator": "settings celery urls wsgi processes embedded local demo",
}

#: Read by Django under these names; there is nothing to say about them.
LEFT_OUT = {"apps", "urls", "wsgi", "asgi"}


def renewed(document: str) -> str:
    """The document with the table of each app written anew."""
    return _SECTION.sub(lambda found: f"{found['begin']}{table_of(found['app'])}\n{found['end']}", document)


def table_of(app: str) -> str:
    """Every module of the app with its first sentence."""
    rows = [
        f"| `{_place(module)}` | {_first_sentence(module)} |"
        for module in sorted(_shown(app), key=_place_in_flow)
    ]
    return "\n".join(["| module | what it says of itself |", "| --- | --- |", *rows])


def _shown(app: str) -> Iterator[tree.Module]:
    for module in tree.modules():
        if tree.is_in(module.name, {app}) and not module.is_empty and module.path.stem not in LEFT_OUT:
            yield module


def _place(module: tree.Module) -> str:
    """The path below the app; a package by its folder."""
    path = str(module.path.relative_to(tree.ROOT).relative_to(module.path.relative_to(tree.ROOT).parts[0]))
    return path.removesuffix("__init__.py") or "__init__.py"


def _place_in_flow(module: tree.Module) -> tuple[int, str]:
    app, _, inner = module.name.partition(".")
    flow = FLOW.get(app, "").split()
    stage = inner.partition(".")[0]
    return (flow.index(stage) if stage in flow else len(flow) if inner else -1, module.name)


def _first_sentence(module: tree.Module) -> str:
    paragraph = " ".join((module.docstring or "").split("\n\n")[0].split())
    return _DEMAND.sub("", _SENTENCE.split(paragraph)[0]).replace("|", "\\|")


def main(path: Path = DOCUMENT) -> None:
    before = path.read_text(encoding="utf-8")
    after = renewed(before)
    path.write_text(after, encoding="utf-8")
    sys.stdout.write(f"{path} {'is up to date' if before == after else 'written'}.\n")


if __name__ == "__main__":
    main()
