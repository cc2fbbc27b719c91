"""Maps files of the repository to their places in the site, and rewrites links accordingly.

Links in documents are relative to the repository, so the same text works on GitHub and in the site. Pages come from `docs/` and a few other
Markdown files. All other files and folders that a page links to are copied below `repository/`.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DOCS = "docs/"
ELSEWHERE = "repository/"

#: Pages from outside `docs/`: the path of the source, and that of the page.
PAGES = {
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "README.md": "readme.md",
    "clients/python/README.md": "python-client-readme.md",
    "examples/agents/README.md": "sample-agents.md",
}

_LINK = re.compile(r"(?P<before>\]\()(?P<target>[^)\s#]+)(?P<after>(?:#[^)\s]*)?\))")
_CODE = re.compile(r"(```.*?```|`[^`\n]+`)", re.DOTALL)


def source_of(uri: str) -> str:
    """Return the path in the repository of a page of the site."""
    return next((source for source, page in PAGES.items() if page == uri), f"{DOCS}{uri}")


def place_of(path: str) -> str:
    """Return the path in the site of a file or folder of the repository."""
    if path in PAGES:
        return PAGES[path]
    is_folder = (ROOT / path).is_dir()
    if f"{path}/".startswith(DOCS):
        return (
            posixpath.join(f"{path}/".removeprefix(DOCS), "index.md")
            if is_folder
            else path.removeprefix(DOCS)
        )
    return f"{ELSEWHERE}{path}.md" if is_folder else f"{ELSEWHERE}{path}"


def linked_from(source: str, text: str) -> Iterator[str]:
    """Yield the paths in the repository that a document links to, except itself."""
    for part in _CODE.split(text)[::2]:
        yield from (
            _resolved(source, link["target"]) for link in _LINK.finditer(part) if not _is_outside(link)
        )


def rewrite_links(source: str, text: str) -> str:
    """Return the document with the links of the site. Code is not changed."""
    page = place_of(source)
    parts = _CODE.split(text)
    parts[::2] = [_LINK.sub(lambda link: _moved(link, source, page), part) for part in parts[::2]]
    return "".join(parts)


def _moved(link: re.Match[str], source: str, page: str) -> str:
    if _is_outside(link):
        return link[0]
    place = place_of(_resolved(source, link["target"]))
    return f"{link['before']}{posixpath.relpath(place, posixpath.dirname(page) or '.')}{link['after']}"


def _is_outside(link: re.Match[str]) -> bool:
    return "://" in link["target"] or link["target"].startswith("mailto:")


def _resolved(source: str, target: str) -> str:
    return posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
