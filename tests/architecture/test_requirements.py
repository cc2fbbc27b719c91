"""Every requirement names tests that exist, or a reason, and the requirements page is up to date."""

from __future__ import annotations

import ast
from functools import cache

from tests import requirements

DEMANDS = requirements.demands()


@cache
def names_in(file: str) -> frozenset[str]:
    tree = ast.parse((requirements.ROOT / file).read_text(encoding="utf-8"))
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))


def test_every_requirement_names_tests_that_exist_and_reasons_that_are_sentences() -> None:
    for number, demand in DEMANDS.items():
        assert demand.keys() <= requirements.MEMBERS, number
        assert demand["demand"].strip(), number
        for test in demand.get("tests", ()):
            file, _, name = test.partition("::")
            assert name.startswith("test_"), test
            assert name in names_in(file), f"{number} names {test}, which does not exist"
        for reason in ("instead", "open"):
            assert demand.get(reason, "A sentence.").endswith("."), f"{number}: {reason} is not a sentence"


#: Requirements that are not met, in part or whole. Nothing is added here: a new requirement is met, or has a reason.
NOT_MET_YET = frozenset(
    (
        "000-015", "000-050", "000-170", "000-184", "000-186", "000-223", "001-015", "001-016", "001-025", "001-053", "001-054",
        "002-027", "002-038", "002-071", "002-079", "002-111", "002-112", "002-115",
    )
)  # fmt: skip


def test_every_requirement_has_tests_or_a_reason() -> None:
    states = {number: requirements.state_of(demand) for number, demand in DEMANDS.items()}

    assert [number for number, state in states.items() if state == requirements.UNNAMED] == []
    assert {number for number, state in states.items() if state == requirements.OPEN} <= NOT_MET_YET


def test_no_requirement_is_left_out() -> None:
    numbers = [number.split("-") for number in DEMANDS]
    last = {"000": 233, "001": 98, "002": 122, "003": 71, "004": 39}

    assert numbers == [[part, f"{number:03}"] for part, most in last.items() for number in range(1, most + 1)]


def test_the_requirements_page_is_up_to_date() -> None:
    assert requirements.DOCUMENT.read_text(encoding="utf-8") == requirements.written(), (
        "run: python -m tests.requirements"
    )
