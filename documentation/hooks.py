"""Hooks of mkdocs: add pages and files from outside `docs/`, rewrite links, and write the reference of the API.

Everything is generated from this repository when the site is built. If something cannot be generated, the build fails.
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
#: The weight of a page in the search, if not 1: pages for newcomers come before pages that mention everything.
WEIGHT = {
    "troubleshooting.md": 4,
    "glossary.md": 2,
    "api-reference.md": 0.5,
    "architecture.md": 0.5,
    "changelog.md": 0.5,
}
REMARK = re.compile(r"^(```\w+) [\w-]+$", re.MULTILINE)  # for the tests, such as `no-run`


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages and files from outside `docs/`."""
    for source, page in repository.PAGES.items():
        files.append(File.generated(config, page, abs_src_path=str(repository.ROOT / source)))
    files.append(
        File.generated(config, ICON, abs_src_path=str(repository.ROOT / "console/static/console/icon.svg"))
    )
    files.append(File.generated(config, DECISIONS, content=_decisions()))
    for path in sorted(_linked(files)):
        place = repository.place_of(path)
        if place.startswith(repository.ELSEWHERE):
            files.append(_copy_of(config, place, repository.ROOT / path))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Rewrite the links of a page, and insert the generated parts."""
    if weight := WEIGHT.get(page.file.src_uri):
        page.meta["search"] = {"boost": weight}
    if OPERATIONS in markdown:
        markdown = markdown.replace(OPERATIONS, api_reference.write_reference(api_reference.schema()))
    if page.file.src_uri.startswith(repository.ELSEWHERE) or page.file.src_uri == DECISIONS:
        return markdown
    markdown = repository.rewrite_links(repository.source_of(page.file.src_uri), markdown)
    return state_picture.replace_diagrams(REMARK.sub(r"\1", markdown))


def _linked(files: Files) -> set[str]:
    return {
        path
        for file in files.documentation_pages()
        for path in repository.linked_from(repository.source_of(file.src_uri), file.content_string)
        if (repository.ROOT / path).exists()
    }


def _decisions() -> str:
    """Return a page that lists the decisions."""
    pages = sorted((repository.ROOT / "docs" / "adr").glob("*.md"))
    heads = [(page.name, page.read_text(encoding="utf-8").partition("\n")[0].lstrip("# ")) for page in pages]
    rows = "\n".join(f"- [{head}]({name})" for name, head in heads)
    return (
        f"# Decisions\n\nOne page each, with the decision, its reasons, and the road not taken.\n\n{rows}\n"
    )


def _copy_of(config: MkDocsConfig, place: str, path: Path) -> File:
    """Return a copy of the file, or for a folder a page that lists its files."""
    if path.is_file():
        return File.generated(config, place, abs_src_path=str(path))
    names = "\n".join(f"- `{each.name}`" for each in sorted(path.iterdir()) if each.is_file())
    return File.generated(
        config, place, content=f"# {path.relative_to(repository.ROOT)}\n\nIn the repository:\n\n{names}\n"
    )
