"""File scopes: the paths and globs that an activity works on, as admission compares them.

`src/a.py` is a file, `src` may be a folder and then stands for all that is in it, `src/*.py` names files right in `src`, and `src/**` all
below it. A last part with a dot after its first character, such as `a.py`, names a file; a folder that is called so is written with a slash
at its end. Two sets overlap when a path of the one and a path of the other may name a common file. That is decided in
admission/lua/files.lua, where the sets of the running work are: rather too often than too seldom.
"""

from __future__ import annotations

import hashlib
import unicodedata
from collections.abc import Iterable, Sequence

MOST_FILES = 100
LONGEST_PATH = 300


def normalise_path(path: str) -> str:
    """The path as it is stored and compared. Raises `ValueError` with what is wrong with it."""
    if not path.strip():
        raise ValueError("must not be blank")
    if len(path) > LONGEST_PATH:
        raise ValueError(f"must have at most {LONGEST_PATH} characters")
    if "\\" in path:
        raise ValueError("must separate its parts with /, and quotes nothing with a backslash")
    if any(unicodedata.category(character).startswith("C") for character in path):
        raise ValueError("must not contain control characters")
    parts = [part for part in unicodedata.normalize("NFC", path).split("/") if part not in ("", ".")]
    if ".." in parts:
        raise ValueError("must not climb with ..")
    for index, part in enumerate(parts):
        if "{" in part:
            # What is in the braces may have slashes; from here on it may be anything.
            parts = [*parts[:index], "**"]
            break
    if not parts:
        return "**"
    if path.endswith("/") and parts[-1] != "**":
        parts.append("**")
    return "/".join(parts)


def digest_of(files: Sequence[str]) -> str:
    """A digest of a set of paths: work on equal sets waits in one line. Empty for work on no files. Admission computes the same digest
    to check that it has kept a set unchanged, so it is one that Redis can compute.
    """
    return hashlib.sha1("\n".join(files).encode(), usedforsecurity=False).hexdigest() if files else ""


def as_set(files: Iterable[str]) -> list[str]:
    """Normalised, each once, in one order. Raises `ValueError`."""
    return sorted({normalise_path(path) for path in files})
