"""docs/screens.md shows every picture, and the pictures are small."""

from __future__ import annotations

import pytest

from tests.screenshots import document
from tests.screenshots.taking import LARGEST, LOOKS, Shot


def test_the_screens_page_shows_every_picture_that_exists() -> None:
    before = document.PAGE.read_text(encoding="utf-8")

    assert before == document.update_tables(before), "run: make screenshots"
    assert [
        file.name for file in document.FOLDER.glob("*.webp") if f"screens/{file.name}" not in before
    ] == []


def test_every_page_has_a_picture_in_every_theme() -> None:
    names = {file.stem.rpartition("-")[0] for file in document.FOLDER.glob("*.webp")}

    assert {"console-start", "console-inbox", "admin-start"} <= names
    assert [
        f"{name}-{look}"
        for name in names
        for look in LOOKS
        if not (document.FOLDER / f"{name}-{look}.webp").exists()
    ] == []


def test_no_picture_is_large() -> None:
    assert [file.name for file in document.FOLDER.glob("*.webp") if file.stat().st_size >= LARGEST] == []


@pytest.mark.parametrize(
    ("area", "address", "name"),
    [
        ("console", "/", "console-start"),
        ("console", "/inbox/?tenant=acme", "console-inbox"),
        ("console", "/inbox/0192f0c4-0000-7000-8000-000000000001/", "console-inbox-one"),
        ("admin", "/admin/", "admin-start"),
        ("admin", "/admin/tenants/tenant/", "admin-tenants-tenant"),
        (
            "admin",
            "/admin/tenants/tenant/0192f0c4-0000-7000-8000-000000000001/change/",
            "admin-tenants-tenant-one",
        ),
    ],
)
def test_a_picture_is_named_after_its_page_and_not_after_its_row(area: str, address: str, name: str) -> None:
    assert Shot(area, address, "").name == name
