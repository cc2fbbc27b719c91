"""Licences of dependencies allow ours, and locks pin every package with its hash."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from importlib.metadata import Distribution, distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.architecture import tree

#: Packages whose metadata declares no licence, with the first line of their licence file. Read a new one before adding it here.
READ = {"axe-playwright-python": "MIT License", "promql-parser": "The MIT License (MIT)"}
LOCKS = sorted((tree.ROOT / "requirements").glob("*.txt"))
#: Copyleft that extends to programs that import the library. The lesser GPL does not.
EXTENDS_TO_US = re.compile(
    r"affero|agpl|(?<!l)(?<!lesser )\bgpl|(?<!lesser )general public license", re.IGNORECASE
)


def _licences(distribution: Distribution) -> str:
    metadata = distribution.metadata
    classifiers = [each for each in metadata.get_all("Classifier") or [] if each.startswith("License")]
    return " | ".join(
        [metadata.get("License-Expression") or "", (metadata.get("License") or "")[:100], *classifiers]
    )


def _pinned(lock: Path) -> list[Requirement]:
    """Return the requirements that a lock pins, with their extras and platforms."""
    return [Requirement(line) for line in re.findall(r"^([a-z0-9].*) \\$", lock.read_text(), re.MULTILINE)]


@cache
def _locked() -> set[str]:
    return {canonicalize_name(each.name) for lock in LOCKS for each in _pinned(lock)}


def _installed() -> Iterator[Distribution]:
    return (each for each in distributions() if canonicalize_name(each.metadata["Name"]) in _locked())


@cache
def _requirements_by_package() -> dict[str, list[Requirement]]:
    return {
        canonicalize_name(each.metadata["Name"]): list(map(Requirement, each.requires or ()))
        for each in _installed()
    }


def test_no_package_has_a_licence_that_extends_to_our_code() -> None:
    extending = {
        each.metadata["Name"]: licences
        for each in _installed()
        if EXTENDS_TO_US.search(licences := _licences(each))
    }

    assert extending == {}


def test_every_package_declares_its_licence_or_its_text_was_read() -> None:
    silent = {
        canonicalize_name(each.metadata["Name"]): _first_lines(each)
        for each in _installed()
        if not _licences(each).strip(" |")
    }

    assert silent == {name: {READ[name]} if name in READ else set() for name in silent}


def _first_lines(distribution: Distribution) -> set[str]:
    """Return the first line of each licence file in the package."""
    files = [each for each in distribution.files or () if "licen" in each.name.lower()]
    return {each.read_text().split("\n", 1)[0].strip() for each in files}


@pytest.mark.parametrize(
    ("licence", "extends"),
    [
        ("AGPL-3.0-only", True),
        ("GNU Affero General Public License v3", True),
        ("GPL-3.0-or-later", True),
        ("License :: OSI Approved :: GNU General Public License v3 (GPLv3)", True),
        ("LGPL-3.0-only", False),
        ("License :: OSI Approved :: GNU Lesser General Public License v3 (LGPLv3)", False),
        ("Apache-2.0", False),
    ],
)
def test_licences_are_classified(licence: str, extends: bool) -> None:
    assert bool(EXTENDS_TO_US.search(licence)) is extends


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: lock.stem)
def test_every_package_of_a_lock_is_pinned_with_hashes(lock: Path) -> None:
    text = lock.read_text()
    entries = re.split(r"\n(?=[a-z0-9])", text.split("make requirements\n", 1)[1])

    assert len(entries) > (0 if lock.stem == "uv" else 50)
    assert [
        entry.splitlines()[0] for entry in entries if "==" not in entry or "--hash=sha256:" not in entry
    ] == []


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: lock.stem)
def test_an_extra_that_a_package_of_a_lock_requires_is_pinned_with_it(lock: Path) -> None:
    # pip before 23.3 takes the newest version for an extra that no line names, and then refuses it because it has no hash:
    # the installation breaks on the day when a package with extras is released again.
    pinned = {canonicalize_name(each.name): each.extras for each in _pinned(lock) if _applies(each)}
    required = [
        requirement
        for package, requirements in _requirements_by_package().items()
        if (extras := pinned.get(package)) is not None
        for requirement in requirements
        if requirement.extras and any(_applies(requirement, extra) for extra in extras or {""})
    ]

    assert required or lock.stem == "uv"
    assert [str(each) for each in required if not each.extras <= pinned[canonicalize_name(each.name)]] == []


def _applies(requirement: Requirement, extra: str = "") -> bool:
    """Whether the requirement applies on this platform, with this extra of the package that has it."""
    return not requirement.marker or requirement.marker.evaluate({"extra": extra})
