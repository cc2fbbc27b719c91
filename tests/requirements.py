"""Writes docs/requirements.md from tests/requirements.toml: `python -m tests.requirements`.

A test compares the page, and checks that every named test exists. Each requirement names the tests that prove it, or says why something
else was built on purpose (`instead`), or what is missing (`open`).
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping
from html import escape
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "tests" / "requirements.toml"
DOCUMENT = ROOT / "docs" / "requirements.md"

PARTS = {
    "000": "Agents' work for many tenants",
    "001": "A persistent queue of tasks for an agent's runtime",
    "002": "Schedules, pipelines and HTTP agents",
    "003": "Many agents within limits",
    "004": "Queues of a company of agents",
}
HELD, INSTEAD, OPEN, UNNAMED = (
    "proved by tests",
    "different on purpose",
    "open in part or whole",
    "no test yet",
)
MEMBERS = {"demand", "tests", "instead", "open"}

_CODE = re.compile(r"`([^`]+)`")
#: What Markdown would take for a sign of its own, in text that is none.
_SIGNS = {sign: "".join(f"&#{ord(each)};" for each in sign) for sign in ("__", "*", "|", "[", "]", "`", "\\")}


def demands() -> Mapping[str, Mapping[str, Any]]:
    """By number, in order."""
    found: Mapping[str, Mapping[str, Any]] = tomllib.loads(SOURCE.read_text(encoding="utf-8"))
    return found


def state_of(demand: Mapping[str, Any]) -> str:
    if "open" in demand:
        return OPEN
    if "instead" in demand:
        return INSTEAD
    return HELD if demand.get("tests") else UNNAMED


def written() -> str:
    """The page."""
    every = demands()
    counts = Counter(map(state_of, every.values()))
    lines = [
        "# Requirements",
        "",
        "For reviewers: each requirement of the platform, with the tests that fail if it is not met, the reason why something",
        "else was built on purpose, or what is missing. `python -m tests.requirements` writes this page from",
        "`tests/requirements.toml`. A test fails if a test that is named here no longer exists.",
        "",
        f"Of {len(every)} requirements, {counts[HELD]} are {HELD}, {counts[INSTEAD]} are {INSTEAD}, {counts[OPEN]} are {OPEN}, and"
        f" {counts[UNNAMED]} have {UNNAMED}.",
    ]
    for part, title in PARTS.items():
        lines += ["", f"## {title}", "", "| no. | requirement | proof |", "| --- | --- | --- |"]
        lines += [_row(number, demand) for number, demand in every.items() if number.startswith(f"{part}-")]
    return "\n".join(lines) + "\n"


def _row(number: str, demand: Mapping[str, Any]) -> str:
    return f"| {number} | {_shown(demand['demand'])} | {'<br>'.join(_held(demand))} |"


def _held(demand: Mapping[str, Any]) -> Iterator[str]:
    for test in demand.get("tests", ()):
        file, _, name = test.partition("::")
        sentence = name.removeprefix("test_").replace("_", " ")
        yield f"{sentence} ({_shown(file)})"
    if "instead" in demand:
        yield f"**Different:** {_shown(demand['instead'])}"
    if "open" in demand:
        yield f"**Open:** {_shown(demand['open'])}"
    if state_of(demand) == UNNAMED:
        yield "No test yet."


def _shown(text: str) -> str:
    """Text with code in it, as HTML that Markdown leaves alone."""
    parts = (_plain(part) for part in _CODE.split(text))
    return "".join(f"<code>{part}</code>" if index % 2 else part for index, part in enumerate(parts))


def _plain(text: str) -> str:
    shown = escape(text, quote=False)
    for sign, entity in _SIGNS.items():
        shown = shown.replace(sign, entity)
    return shown


if __name__ == "__main__":
    before = DOCUMENT.read_text(encoding="utf-8") if DOCUMENT.exists() else ""
    DOCUMENT.write_text(written(), encoding="utf-8")
    sys.stdout.write(f"{DOCUMENT} {'is up to date' if before == written() else 'written'}.\n")
