"""Semantic versions, against the examples of semver.org."""

from __future__ import annotations

from itertools import pairwise

import pytest

from agents.semantic_versions import Precedence, error_of

VALID = [
    "0.0.4",
    "1.2.3",
    "10.20.30",
    "1.1.2-prerelease+meta",
    "1.1.2+meta",
    "1.0.0-alpha",
    "1.0.0-alpha.beta",
    "1.0.0-alpha.0valid",
    "1.0.0-alpha-a.b-c-long",
    "1.0.0-rc.1+build.1",
    "2.0.0+build.1848",
    "1.2.3----RC-SNAPSHOT.12.9.1--.12",
    "1.0.0+0.build.1-rc.10000aaa-kk-0.1",
    "1.0.0-0A.is.legal",
]
INVALID = [
    "1",
    "1.2",
    "1.2.3-0123",
    "1.2.3-0123.0123",
    "1.1.2+.123",
    "+invalid",
    "-invalid",
    "alpha",
    "1.2.3.DEV",
    "1.2-SNAPSHOT",
    "01.1.1",
    "1.01.1",
    "1.1.01",
    "1.0.0-alpha_beta",
    "1.0.0-alpha..",
    "-1.0.3-gamma+b7718",
    "+justmeta",
    "1.2.3+a+b",
    "v1.2.3",
    "1.2.3-é",
    "\u0661.\u0662.\u0663",
]


@pytest.mark.parametrize("version", VALID)
def test_versions_of_the_grammar_are_accepted(version: str) -> None:
    assert error_of(version) is None
    assert Precedence(version) == Precedence(version)


@pytest.mark.parametrize("version", [*INVALID, "", " 1.2.3", "1.2.3 ", "1.2.3-" + "a" * 64])
def test_versions_outside_the_grammar_are_refused(version: str) -> None:
    assert error_of(version)
    with pytest.raises(ValueError, match="semantic version"):
        Precedence(version)


def test_versions_are_ordered_as_the_specification_says() -> None:
    ordered = [
        "1.0.0-alpha",
        "1.0.0-alpha.1",
        "1.0.0-alpha.beta",
        "1.0.0-beta",
        "1.0.0-beta.2",
        "1.0.0-beta.11",
        "1.0.0-rc.1",
        "1.0.0",
        "1.0.1",
        "1.2.0",
        "1.10.0",
        "2.0.0",
    ]

    assert all(Precedence(lower) < Precedence(higher) for lower, higher in pairwise(ordered))
    assert Precedence("1.0.0+one") == Precedence("1.0.0+two")
