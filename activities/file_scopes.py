"""File scopes: normalises the paths and globs that an activity works on, so that admission can compare them.

`src/a.py` is a file. `src` may be a folder, and then includes everything in it. `src/*.py` matches files directly in `src`, and `src/**`
everything below it. A last part with a dot after its first character, such as `a.py`, is a file; a folder with such a name needs a slash at
its end. Two sets overlap if a path of each may name the same file. admission/lua/files.lua decides that, next to the sets of running
work; in doubt it reports an overlap.
"""

from __future__ import annotations

import hashlib
import unicodedata
from collections.abc import Sequence

MOST_FILES = 100
LONGEST_PATH = 300


def normalise_path(path: str) -> str:
    """Return the path as it is stored and compared. Raises `ValueError` with the reason if it is invalid."""
    if not path.strip():
        raise ValueError("must not be blank")
    if len(path) > LONGEST_PATH:
        raise ValueError(f"must have at most {LONGEST_PATH} characters")
    if "\\" in path:
        raise ValueError("must use / between its parts, and must not contain a backslash")
    if any(unicodedata.category(character).startswith("C") for character in path):
        raise ValueError("must not contain control characters")
    parts = [part for part in unicodedata.normalize("NFC", path).split("/") if part not in ("", ".")]
    if ".." in parts:
        raise ValueError("must not contain ..")
    for index, part in enumerate(parts):
        if "{" in part:
            # Braces may contain slashes, so match anything from here on.
            parts = [*parts[:index], "**"]
            break
    if not parts:
        return "**"
    if path.endswith("/") and parts[-1] != "**":
        parts.append("**")
    return "/".join(parts)


def digest_of(files: Sequence[str]) -> str:
    """Return a digest of a set of paths, empty for no files. Work on equal sets waits in one queue.

    SHA-1, because admission computes the same digest in Redis to check that it has stored a set unchanged.
    """
    return hashlib.sha1("\n".join(files).encode(), usedforsecurity=False).hexdigest() if files else ""
