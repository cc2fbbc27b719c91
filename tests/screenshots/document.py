"""Writes docs/screens.md from the existing pictures."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from tests.architecture import tree
from tests.screenshots.taking import LOOKS, Shot

FOLDER = tree.ROOT / "docs" / "images" / "screens"
OF_TUTORIAL = tree.ROOT / "docs" / "images" / "tutorial"
PAGE = tree.ROOT / "docs" / "screens.md"
_SECTION = re.compile(r"(<!-- pictures: (\w+) -->\n).*?(<!-- end of \w+ -->)", re.DOTALL)


def delete_others(shots: Iterable[Shot]) -> None:
    """Delete pictures of pages that no longer exist."""
    names = {file.name for shot in shots for file in shot.files}
    for file in FOLDER.glob("*.webp"):
        if file.name not in names:
            file.unlink()


def write() -> None:
    """Update the tables of the page."""
    text = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(update_tables(text), encoding="utf-8")


def update_tables(text: str) -> str:
    return _SECTION.sub(lambda section: f"{section[1]}{_table(section[2])}\n{section[3]}", text)


def _table(area: str) -> str:
    names = sorted({file.stem.rpartition("-")[0] for file in FOLDER.glob(f"{area}-*.webp")})
    names.sort(key=lambda name: not name.endswith("-start"))
    head = ["| page | " + " | ".join(LOOKS) + " |", "| --- |" + " --- |" * len(LOOKS)]
    return "\n".join([*head, *(_row(area, name) for name in names)])


def _row(area: str, name: str) -> str:
    words = name.removeprefix(f"{area}-").replace("-", " ")
    cells = [_cell(words, look, f"{name}-{look}.webp") for look in LOOKS]
    return f"| {words.replace('start', 'overview')} | {' | '.join(cells)} |"


def _cell(words: str, look: str, file: str) -> str:
    address = (Path("images") / "screens" / file).as_posix()
    return f"[![{words}, {look}]({address})]({address})" if (FOLDER / file).exists() else ""
