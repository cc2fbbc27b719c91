"""Hooks of mkdocs: pages and files from beside `docs/`, links as the site needs them, and the reference of the API.

Everything is made of this repository while the site is built; what cannot be made fails the build.
"""

from __future__ import annotations

import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from documentation import api_reference, repository, state_picture

OPERATIONS = "<!-- built: operations -->"
ICON = "images/icon.svg"
DECISIONS = "adr/index.md"
#: How much a page counts in the search, where it is not 1: what a newcomer looks for comes before what names everything.
WEIGHT = {
    "troubleshooting.md": 4,
    "glossary.md": 2,
    "api-reference.md": 0.5,
    "architecture.md": 0.5,
    "changelog.md": 0.5,
}
REMARK = re.compile(r"^(```\w+) [\w-]+$", re.MULTILINE)  # for the tests, such as `no-run`


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages and files that lie beside `docs/`."""
    for source, page in repository.PAGES.items():
        files.append(File.generated(config, page, abs_src_path=str(repository.ROOT / source)))
    files.append(
        File.generated(config, ICON, abs_src_path=str(repository.ROOT / "console/static/console/icon.svg"))
    )
    files.append(File.generated(config, DECISIONS, content=_decisions()))
    for path in sorted(_linked(files)):
        place = repository.place_of(path)
        if place.startswith(repository.ELSEWHERE):
            files.append(_brought_along(config, place, repository.ROOT / path))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Mend the links of a page, and write what is only written at build."""
    if weight := WEIGHT.get(page.file.src_uri):
        page.meta["search"] = {"boost": weight}
    if OPERATIONS in markdown:
        markdown = markdown.replace(OPERATIONS, api_reference.of(api_reference.schema()))
    if page.file.src_uri.startswith(repository.ELSEWHERE) or page.file.src_uri == DECISIONS:
        return markdown
    markdown = repository.for_the_site(repository.source_of(page.file.src_uri), markdown)
    return state_picture.with_pictures(REMARK.sub(r"\1", markdown))


def _linked(files: Files) -> set[str]:
    return {
        path
        for file in files.documentation_pages()
        for path in repository.linked_from(repository.source_of(file.src_uri), file.content_string)
        if (repository.ROOT / path).exists()
    }


def _decisions() -> str:
    """A page for the folder of decisions: which there are."""
    pages = sorted((repository.ROOT / "docs" / "adr").glob("*.md"))
    heads = [(page.name, page.read_text(encoding="utf-8").partition("\n")[0].lstrip("# ")) for page in pages]
    rows = "\n".join(f"- [{head}]({name})" for name, head in heads)
    return f"# Decisions\n\nOne page each, with what was decided, why, and the road not taken.\n\n{rows}\n"


def _brought_along(config: MkDocsConfig, place: str, path: Path) -> File:
    """A file as it is; of a folder, the list of what is in it."""
    if path.is_file():
        return File.generated(config, place, abs_src_path=str(path))
    names = "\n".join(f"- `{each.name}`" for each in sorted(path.iterdir()) if each.is_file())
    return File.generated(
        config, place, content=f"# {path.relative_to(repository.ROOT)}\n\nIn the repository:\n\n{names}\n"
    )
