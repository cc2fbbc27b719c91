"""What we depend on may be given on with our licence, and comes as it was locked."""

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

#: Packages whose metadata tells no licence, with that of the file that comes along with them. Look at a new one before it is written here.
READ = {"axe-playwright-python": "MIT License", "promql-parser": "The MIT License (MIT)"}
LOCKS = sorted((tree.ROOT / "requirements").glob("*.txt"))
#: Copyleft that reaches beyond the library itself. The lesser GPL does not, as we only import.
REACHES_US = re.compile(
    r"affero|agpl|(?<!l)(?<!lesser )\bgpl|(?<!lesser )general public license", re.IGNORECASE
)


def _licences(distribution: Distribution) -> str:
    told = distribution.metadata
    classifiers = [each for each in told.get_all("Classifier") or [] if each.startswith("License")]
    return " | ".join([told.get("License-Expression") or "", (told.get("License") or "")[:100], *classifiers])


def _pinned(lock: Path) -> list[Requirement]:
    """What one file of requirements pins, with the extras and the platforms it names."""
    return [Requirement(line) for line in re.findall(r"^([a-z0-9].*) \\$", lock.read_text(), re.MULTILINE)]


@cache
def _locked() -> set[str]:
    return {canonicalize_name(each.name) for lock in LOCKS for each in _pinned(lock)}


def _installed() -> Iterator[Distribution]:
    return (each for each in distributions() if canonicalize_name(each.metadata["Name"]) in _locked())


def test_no_package_has_a_licence_that_extends_to_our_code() -> None:
    reaching = {
        each.metadata["Name"]: licences
        for each in _installed()
        if REACHES_US.search(licences := _licences(each))
    }

    assert reaching == {}


def test_every_package_declares_its_licence_or_its_text_was_read() -> None:
    silent = {
        canonicalize_name(each.metadata["Name"]): _first_lines(each)
        for each in _installed()
        if not _tells(each)
    }

    assert silent == {name: {READ[name]} if name in READ else set() for name in silent}


def _tells(distribution: Distribution) -> bool:
    return bool(_licences(distribution).strip(" |"))


def _first_lines(distribution: Distribution) -> set[str]:
    """How the licences begin that lie in the package."""
    files = [each for each in distribution.files or () if "licen" in each.name.lower()]
    return {each.read_text().split("\n", 1)[0].strip() for each in files}


@pytest.mark.parametrize(
    ("licence", "reaches"),
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
def test_licences_are_classified(licence: str, reaches: bool) -> None:
    assert bool(REACHES_US.search(licence)) is reaches


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: lock.stem)
def test_every_package_of_a_lock_is_pinned_with_hashes(lock: Path) -> None:
    text = lock.read_text()
    entries = re.split(r"\n(?=[a-z0-9])", text.split("make requirements\n", 1)[1])

    assert len(entries) > 50
    assert [
        entry.splitlines()[0] for entry in entries if "==" not in entry or "--hash=sha256:" not in entry
    ] == []


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: lock.stem)
def test_an_extra_that_a_package_of_a_lock_asks_for_is_pinned_with_it(lock: Path) -> None:
    # pip before 23.3 takes the newest version for an extra that no line names, and then refuses it for want of a hash:
    # the installation breaks on the day that a package with extras is released again.
    pinned = {canonicalize_name(each.name): each.extras for each in _pinned(lock) if _applies(each)}
    asked = [
        wanted
        for each in _installed()
        if (extras := pinned.get(canonicalize_name(each.metadata["Name"]))) is not None
        for wanted in map(Requirement, each.requires or ())
        if wanted.extras and any(_applies(wanted, extra) for extra in extras or {""})
    ]

    assert asked
    assert [str(each) for each in asked if not each.extras <= pinned[canonicalize_name(each.name)]] == []


def _applies(requirement: Requirement, extra: str = "") -> bool:
    """Whether it is one on this platform, for who wants the extra of the package that has it."""
    return not requirement.marker or requirement.marker.evaluate({"extra": extra})
