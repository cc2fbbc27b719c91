"""The documentation site builds without warnings, loads nothing from other hosts, and includes the whole API."""

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

#: Attributes by which a page loads something itself, unlike links.
FETCHING = {"src", "srcset", "poster", "data", "xlink:href"}
#: Addresses in the theme's script that our pages never use: diagrams in the browser (ours are drawn at build), figures of a
#: GitHub repository (the site names none), and a polyfill for browsers before 2020.
UNUSED_ADDRESSES = (
    "https://unpkg.com/mermaid@",
    "https://unpkg.com/resize-observer-polyfill",
    "https://api.github.com/",
)


class PageParser(HTMLParser):
    """Collects the addresses that a page loads, and counts diagrams to be drawn in the browser."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []
        self.diagrams = 0

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attributes}
        self.addresses += [value for name, value in values.items() if name in FETCHING]
        if tag == "link" and values.get("rel") not in {"canonical", "prev", "next"}:
            self.addresses.append(values.get("href", ""))
        self.diagrams += "mermaid" in values.get("class", "").split()


#: Runs mkdocs with the OpenAPI schema from standard input, because generating it takes a third of the time.
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
    """The site, built as by `make docs`, where any warning, such as a broken link, is an error."""
    folder = tmp_path_factory.mktemp("documentation") / "site"
    process = subprocess.run(
        # Without -q, which would suppress warnings and their failure.
        [sys.executable, "-c", MKDOCS, "build", "--strict", "-d", str(folder)],
        input=json.dumps(schema()),
        cwd=tree.ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == 0, process.stdout + process.stderr
    return folder


def pages(site: Path) -> Iterator[tuple[str, str]]:
    for path in sorted(site.rglob("*.html")):
        yield str(path.relative_to(site)), path.read_text(encoding="utf-8")


def is_outside(address: str) -> bool:
    return address.startswith("//") or (
        re.match(r"[a-z+.-]+:", address) is not None and not address.startswith("data:")
    )


def test_no_page_loads_anything_from_other_hosts(site: Path) -> None:
    outside = {}
    for name, text in pages(site):
        parser = PageParser()
        parser.feed(text)
        assert parser.diagrams == 0, name
        if matches := [address for address in parser.addresses if is_outside(address)]:
            outside[name] = matches

    assert outside == {}


def test_no_style_or_picture_loads_anything_from_other_hosts(site: Path) -> None:
    external = re.compile(
        r"(?:url\(|@import\s+)[\"']?((?:https?:)?//[^\"')\s]+)|(?:xlink:)?href=\"(https?://[^\"]+)"
    )
    files = [path for path in site.rglob("*") if path.suffix in {".css", ".svg"}]

    assert files
    assert {
        str(path.relative_to(site)): matches
        for path in files
        if (matches := external.findall(path.read_text(encoding="utf-8")))
    } == {}


def test_no_script_contains_an_external_address_that_it_could_load(site: Path) -> None:
    """Only addresses in strings count, not those in quoted licences."""
    addresses = {
        address
        for path in site.rglob("*.js")
        for address in re.findall(r"[\"'`](https?://[\w.-]+/[\w./-]*@?)", path.read_text(encoding="utf-8"))
        if "www.w3.org" not in address
    }

    assert {address for address in addresses if not address.startswith(UNUSED_ADDRESSES)} == set()


def test_the_schema_of_the_reference_is_that_of_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    document = schema()  # before its generator is replaced

    def run(command: list[str], cwd: Path, **_: Any) -> Any:
        assert (command[:2], cwd) == ([sys.executable, "manage.py"], tree.ROOT)
        output = StringIO()
        call_command(*command[2:], stdout=output)
        return SimpleNamespace(stdout=output.getvalue())

    monkeypatch.setattr(SchemaGenerator, "get_schema", lambda *_, **__: document)
    monkeypatch.setattr(api_reference, "subprocess", SimpleNamespace(run=run))

    assert api_reference.schema() == document


def test_every_operation_of_the_api_is_in_the_reference(site: Path) -> None:
    operations = json.loads((tree.ROOT / "docs" / "openapi-operations.json").read_text(encoding="utf-8"))
    text = (site / "api-reference.html").read_text(encoding="utf-8")
    headings = set(re.findall(r"<h3[^>]*>([A-Z]+ /api/v1/[^<]*)<", text))

    assert {operation["address"] for operation in operations.values()} - headings == set()


def test_lists_tables_and_code_blocks_are_rendered(site: Path) -> None:
    """No list, table or fence is part of the paragraph before it."""
    unrendered = re.compile(r"<p>(?:(?!</p>)[\s\S])*?\n(?:- |\d+\. |\| |```)")

    assert {
        name: matches[0][-80:] for name, text in pages(site) if (matches := unrendered.search(text))
    } == {}


def test_links_to_other_files_of_the_repository_lead_to_copies(site: Path) -> None:
    schedules = (site / "schedules.html").read_text(encoding="utf-8")

    assert 'href="repository/examples/schedules.html"' in schedules
    assert "changelog.html" in (site / "operations.html").read_text(encoding="utf-8")
    assert (site / "repository" / "examples" / "schedules" / "tickers-100.csv").exists()


def test_links_in_code_are_unchanged() -> None:
    text = "See [it](../LICENSE#a) and `[it](../LICENSE)`.\n```\n[it](../LICENSE)\n```\n"

    assert repository.rewrite_links("docs/page.md", text) == text.replace(
        "../LICENSE#a", "repository/LICENSE#a"
    )


def test_the_lifecycle_picture_contains_every_status_and_verb_of_its_text(site: Path) -> None:
    fence = state_picture.FENCE.search((tree.ROOT / "docs" / "lifecycle.md").read_text(encoding="utf-8"))
    assert fence
    drawn = (site / "lifecycle.html").read_text(encoding="utf-8")

    for source, target, verbs in re.findall(r"^\s+(\w+) --> (\w+): (.+)$", fence["text"], re.MULTILINE):
        assert f">{source}</text>" in drawn
        assert f">{target}</text>" in drawn
        assert f">{verbs}</text>" in drawn


def test_a_diagram_with_an_unknown_status_or_of_another_kind_is_refused() -> None:
    with pytest.raises(ValueError, match="no place in the picture for resting"):
        state_picture.draw("stateDiagram-v2\n    created --> resting: rest\n")
    with pytest.raises(ValueError, match="only diagrams of the kind"):
        state_picture.draw("flowchart TD\n    a --> b\n")


def test_the_search_ranks_troubleshooting_above_the_reference(site: Path) -> None:
    entries = json.loads((site / "search" / "search_index.json").read_text(encoding="utf-8"))["docs"]
    weight = {
        page: {each.get("boost", 1) for each in entries if each["location"].partition("#")[0] == page}
        for page in ("troubleshooting.html", "pipelines.html", "api-reference.html")
    }

    assert weight == {"troubleshooting.html": {4}, "pipelines.html": {1}, "api-reference.html": {0.5}}
