"""The documentation as a site: it is built without a warning, needs nothing from elsewhere, and shows what the program offers."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from django.core.management import call_command
from drf_spectacular.generators import SchemaGenerator

from documentation import api_reference, repository, state_picture
from tests.architecture import tree
from tests.integration.test_api_openapi import schema

pytestmark = pytest.mark.long

#: Attributes with which a page fetches something by itself. A link that a reader follows is none of them.
FETCHING = {"src", "srcset", "poster", "data", "xlink:href"}
#: What the theme's own program could fetch and nothing asks it for: a drawer of diagrams (ours are drawn at build), figures of a
#: repository on GitHub (the site names none), and what browsers of before 2020 lack.
NEVER_ASKED = (
    "https://unpkg.com/mermaid@",
    "https://unpkg.com/resize-observer-polyfill",
    "https://api.github.com/",
)


class Fetched(HTMLParser):
    """The addresses that a page fetches, and whether it asks for a diagram to be drawn in the browser."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []
        self.diagrams = 0

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attributes}
        self.addresses += [value for name, value in given.items() if name in FETCHING]
        if tag == "link" and given.get("rel") not in {"canonical", "prev", "next"}:
            self.addresses.append(given.get("href", ""))
        self.diagrams += "mermaid" in given.get("class", "").split()


#: mkdocs with the OpenAPI schema that standard input gives, as tests have it already: making it takes a third of the time of all.
MKDOCS = """
import json, sys
from documentation import api_reference
from mkdocs.__main__ import cli
document = json.load(sys.stdin)
api_reference.schema = lambda: document
cli()
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built as `make docs` does: any warning, such as a link that leads nowhere, fails it."""
    folder = tmp_path_factory.mktemp("documentation") / "site"
    done = subprocess.run(
        # With -q warnings would not be counted, and nothing would fail.
        [sys.executable, "-c", MKDOCS, "build", "--strict", "-d", str(folder)],
        input=json.dumps(schema()),
        cwd=tree.ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def pages(site: Path) -> Iterator[tuple[str, str]]:
    for path in sorted(site.rglob("*.html")):
        yield str(path.relative_to(site)), path.read_text(encoding="utf-8")


def is_outside(address: str) -> bool:
    return address.startswith("//") or (
        re.match(r"[a-z+.-]+:", address) is not None and not address.startswith("data:")
    )


def test_no_page_fetches_anything_from_elsewhere(site: Path) -> None:
    outside = {}
    for name, text in pages(site):
        fetched = Fetched()
        fetched.feed(text)
        assert fetched.diagrams == 0, name
        if found := [address for address in fetched.addresses if is_outside(address)]:
            outside[name] = found

    assert outside == {}


def test_no_style_or_picture_fetches_anything_from_elsewhere(site: Path) -> None:
    fetching = re.compile(
        r"(?:url\(|@import\s+)[\"']?((?:https?:)?//[^\"')\s]+)|(?:xlink:)?href=\"(https?://[^\"]+)"
    )
    files = [path for path in site.rglob("*") if path.suffix in {".css", ".svg"}]

    assert files
    assert {
        str(path.relative_to(site)): found
        for path in files
        if (found := fetching.findall(path.read_text(encoding="utf-8")))
    } == {}


def test_no_script_names_an_address_that_it_could_fetch_from(site: Path) -> None:
    """Addresses in the licences that bundles quote are read by nobody; what stands in a string may be fetched."""
    named = {
        address
        for path in site.rglob("*.js")
        for address in re.findall(r"[\"'`](https?://[\w.-]+/[\w./-]*@?)", path.read_text(encoding="utf-8"))
        if "www.w3.org" not in address
    }

    assert {address for address in named if not address.startswith(NEVER_ASKED)} == set()


def test_the_schema_of_the_reference_is_what_the_program_says(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(command: list[str], cwd: Path, **_: Any) -> Any:
        assert (command[:2], cwd) == ([sys.executable, "manage.py"], tree.ROOT)
        said = StringIO()
        call_command(*command[2:], stdout=said)
        return SimpleNamespace(stdout=said.getvalue())

    monkeypatch.setattr(SchemaGenerator, "get_schema", lambda *_, **__: schema())
    monkeypatch.setattr(api_reference, "subprocess", SimpleNamespace(run=run))

    assert api_reference.schema() == schema()


def test_every_operation_of_the_api_is_in_the_reference(site: Path) -> None:
    operations = json.loads((tree.ROOT / "docs" / "openapi-operations.json").read_text(encoding="utf-8"))
    text = (site / "api-reference.html").read_text(encoding="utf-8")
    shown = set(re.findall(r"<h3[^>]*>([A-Z]+ /api/v1/[^<]*)<", text))

    assert {operation["address"] for operation in operations.values()} - shown == set()


def test_every_page_is_drawn_as_it_was_meant(site: Path) -> None:
    """No list or table that ran into the paragraph before it, no code that was never closed."""
    spoilt = re.compile(r"<p>(?:(?!</p>)[\s\S])*?\n(?:- |\d+\. |\| |```)")

    assert {name: found[0][-80:] for name, text in pages(site) if (found := spoilt.search(text))} == {}


def test_a_link_out_of_the_documents_leads_to_what_came_along(site: Path) -> None:
    schedules = (site / "schedules.html").read_text(encoding="utf-8")

    assert 'href="repository/examples/schedules.html"' in schedules
    assert "changelog.html" in (site / "operations.html").read_text(encoding="utf-8")
    assert (site / "repository" / "examples" / "schedules" / "tickers-100.csv").exists()


def test_a_link_in_code_stays_as_it_is() -> None:
    text = "See [it](../LICENSE#a) and `[it](../LICENSE)`.\n```\n[it](../LICENSE)\n```\n"

    assert repository.for_the_site("docs/page.md", text) == text.replace(
        "../LICENSE#a", "repository/LICENSE#a"
    )


def test_the_picture_shows_every_status_and_verb_that_the_text_draws(site: Path) -> None:
    fence = state_picture.FENCE.search((tree.ROOT / "docs" / "lifecycle.md").read_text(encoding="utf-8"))
    assert fence
    drawn = (site / "lifecycle.html").read_text(encoding="utf-8")

    for source, target, verbs in re.findall(r"^\s+(\w+) --> (\w+): (.+)$", fence["text"], re.MULTILINE):
        assert f">{source}</text>" in drawn
        assert f">{target}</text>" in drawn
        assert f">{verbs}</text>" in drawn


def test_a_diagram_with_a_status_that_has_no_place_is_refused() -> None:
    with pytest.raises(ValueError, match="no place in the picture for resting"):
        state_picture.drawn("stateDiagram-v2\n    created --> resting: rest\n")
    with pytest.raises(ValueError, match="only diagrams of the kind"):
        state_picture.drawn("flowchart TD\n    a --> b\n")


def test_who_searches_for_a_symptom_finds_what_to_do_before_the_reference(site: Path) -> None:
    found = json.loads((site / "search" / "search_index.json").read_text(encoding="utf-8"))["docs"]
    weight = {
        page: {each.get("boost", 1) for each in found if each["location"].partition("#")[0] == page}
        for page in ("troubleshooting.html", "pipelines.html", "api-reference.html")
    }

    assert weight == {"troubleshooting.html": {4}, "pipelines.html": {1}, "api-reference.html": {0.5}}
