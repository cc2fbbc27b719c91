"""`manage.py draw_lifecycle [--check]`: writes the diagram and the tables of docs/lifecycle.md from the state table."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable
from enum import StrEnum
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser

from activities import states
from activities.states import FINAL, TRANSITIONS, Status


class Command(BaseCommand):
    help = (
        "Update docs/lifecycle.md from activities/states.py. Changes only the sections between its markers."
    )
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--check", action="store_true", help="change nothing; fail if the document is out of date"
        )

    def handle(self, *args: Any, check: bool, **options: Any) -> None:
        path = Path(settings.BASE_DIR) / "docs" / "lifecycle.md"
        before = path.read_text(encoding="utf-8")
        after = renew_sections(before)
        if before == after:
            self.stdout.write(f"{path} is up to date.")
        elif check:
            raise CommandError(f"{path} does not match activities/states.py. Run: manage.py draw_lifecycle")
        else:
            path.write_text(after, encoding="utf-8")
            self.stdout.write(f"{path} written.")


# The generated sections. They are derived from `activities.states`, including the comments on its members, and a test compares the
# document with them.

# Verbs with more source statuses are not drawn, because their arrows would hide the diagram.
DRAWN_SOURCES = 4

_MEMBER = re.compile(r'^    [A-Z_]+ = "(?P<value>[a-z_]+)"(?:  # (?P<remark>.+))?$', re.MULTILINE)
_SECTION = re.compile(
    r"(?P<begin><!-- generated: (?P<name>\w+) -->\n).*?(?P<end><!-- end of \w+ -->)", re.DOTALL
)


def picture() -> str:
    """Return a Mermaid state diagram of all verbs with few sources."""
    lines = ["```mermaid", "stateDiagram-v2", "    direction TB", f"    [*] --> {Status.CREATED}: submit"]
    lines += [
        f"    {source} --> {target}: {', '.join(verbs)}" for (source, target), verbs in _arrows().items()
    ]
    lines += [f"    {status} --> [*]" for status in Status if status in FINAL]
    return "\n".join([*lines, "```"])


def not_drawn() -> str:
    """List the verbs that the diagram leaves out."""
    return "\n".join(
        f"- `{verb}` leads from {_list_names(step.sources)} to `{step.target}`."
        for verb, step in TRANSITIONS.items()
        if len(step.sources) > DRAWN_SOURCES
    )


def statuses() -> str:
    """Return the table of statuses: kind, how each is left, and by which verbs."""
    remarks = _remarks(Status)
    rows = [
        (f"`{s}`", _kind(s), remarks[s], ", ".join(f"`{verb}`" for verb in states.verbs_from(s)))
        for s in Status
    ]
    return _table(("status", "kind", "how it is left", "verbs"), rows)


def verbs() -> str:
    """Return the table of verbs with their sources and targets."""
    rows = [
        (f"`{verb}`", _list_names(step.sources), f"`{step.target}`") for verb, step in TRANSITIONS.items()
    ]
    return _table(("verb", "from", "to"), rows)


def runs() -> str:
    return _values(states.RunStatus)


def wakes() -> str:
    """Return the table of wake states, and the list of wake reasons."""
    reasons = ", ".join(f"`{reason}`" for reason in states.WakeReason)
    return f"{_values(states.WakeState)}\n\nReasons: {reasons}."


def bands() -> str:
    return _table(("band", "priority"), [(name, str(priority)) for name, priority in states.BANDS.items()])


#: By name of a marked section, the function that generates it.
SECTIONS: dict[str, Callable[[], str]] = {
    part.__name__: part for part in (picture, not_drawn, statuses, verbs, runs, wakes, bands)
}


def renew_sections(document: str) -> str:
    """Return the document with all marked sections generated again. Raises `KeyError` for an unknown section."""
    return _SECTION.sub(
        lambda match: f"{match['begin']}{SECTIONS[match['name']]()}\n{match['end']}", document
    )


def _arrows() -> dict[tuple[Status, Status], list[str]]:
    """Return the verbs by source and target, in the order of the table."""
    arrows: dict[tuple[Status, Status], list[str]] = {}
    for verb, step in TRANSITIONS.items():
        if len(step.sources) <= DRAWN_SOURCES:
            for source in _sort(step.sources):
                arrows.setdefault((source, step.target), []).append(verb)
    return arrows


def _kind(status: Status) -> str:
    kinds = {
        "final": FINAL,
        "settled": states.SETTLED,
        "running": states.RUNNING,
        "waiting": states.WAITING,
    }
    return next((kind for kind, members in kinds.items() if status in members), "ready")


def _remarks(kind: type[StrEnum]) -> dict[str, str]:
    """Return the comment on each member in the source code."""
    remarks = {match["value"]: match["remark"] or "" for match in _MEMBER.finditer(inspect.getsource(kind))}
    return {member.value: remarks[member.value] for member in kind}


def _values(kind: type[StrEnum]) -> str:
    return _table(("status", "meaning"), [(f"`{value}`", remark) for value, remark in _remarks(kind).items()])


def _sort(statuses: Iterable[Status]) -> list[Status]:
    return sorted(statuses, key=list(Status).index)


def _list_names(statuses: Iterable[Status]) -> str:
    return ", ".join(f"`{status}`" for status in _sort(statuses))


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
