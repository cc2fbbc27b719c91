"""The subject of a run from the template of its pipeline, and which labels are valid."""

from __future__ import annotations

import tracemalloc
from typing import Any

import pytest

from pipelines.subjects import error_of_template, errors_of_labels, render, subject_of


@pytest.mark.parametrize(
    ("template", "params", "subject"),
    [
        ("{{ topic }} for {{client.name}}", {"topic": "Bees", "client": {"name": "Acme"}}, "Bees for Acme"),
        ("{{topic}}: {{ words }} words, {{ draft }}", {"topic": "Bees", "words": 800, "draft": True}, "Bees: 800 words, true"),
        ("{{ topic }} in {{ city }}", {"topic": "Bees"}, "Bees in"),
        ("{{ client }} {{ tags }}", {"client": {"name": "Acme"}, "tags": ["a"]}, ""),
        ("{{ topic }}", {"topic": "Two\nlines\u202eof  text"}, "Two lines of text"),
        ("{{ topic }}", {"topic": "{{ secret }}", "secret": "no"}, "{{ secret }}"),
        ("{{ topic }}", {"topic": "x" * 300}, "x" * 200),
        ("{{ topic }}", {"topic": "\u0645\u06cc\u200c\u062e \u2764\ufe0f ad\u200dmin"}, "\u0645\u06cc\u200c\u062e \u2764\ufe0f ad min"),
        ("{{ topic }}", {"topic": "x" * 198 + "\u0645\u200c\u062e"}, "x" * 198 + "\u0645"),
        ("Monthly report", {}, "Monthly report"),
        ("", {"topic": "Bees"}, ""),
    ],
)  # fmt: skip
def test_a_subject_is_one_line_rendered_from_the_parameters(
    template: str, params: dict[str, Any], subject: str
) -> None:
    assert render(template, params) == subject


def test_of_very_long_texts_only_the_beginnings_are_rendered() -> None:
    params = {"topic": "x" * 250_000}
    tracemalloc.start()
    try:
        subject = render("{{ topic }}" * 18, params)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert subject == "x" * 200
    assert most < 1_000_000


@pytest.mark.parametrize(
    "template", ["{{ topic", "topic }}", "{{ 1st }}", "{{ a b }}", "{{ a|upper }}", "{{}}", "{{ a. }}"]
)
def test_other_braces_are_not_a_template(template: str) -> None:
    assert "may name a parameter as {{ topic }}" in (error_of_template(template) or "")


@pytest.mark.parametrize(
    "template", ["", "Plain", "{ one brace }", "{{topic}}", "{{ client.name }} {{ a-b_c }}"]
)
def test_valid_templates_are_accepted(template: str) -> None:
    assert error_of_template(template) is None


def test_the_subject_of_a_run_is_its_name_or_else_a_parameter() -> None:
    assert subject_of("Bees", {"title": "Wasps"}) == "Bees"
    assert subject_of("", {"city": "Oslo", "title": "Wasps"}) == "Wasps"


@pytest.mark.parametrize(
    ("labels", "names"),
    [
        ({"client": "Acme", "q3.plan_a-1": "x"}, []),
        ({}, []),
        ([], [""]),
        ({"Client": "x"}, ["Client"]),
        ({"-a": "x", "a--b": "x", "a" * 64: "x"}, ["-a", "a--b", "a" * 64]),
        ({"a": "", "b": " ", "c": 5, "d": None, "e": "x" * 201, "f": "two\nlines"}, ["a", "b", "c", "d", "e", "f"]),
        ({f"a{number}": "x" for number in range(21)}, [""]),
    ],
)  # fmt: skip
def test_each_invalid_label_is_reported(labels: Any, names: list[str]) -> None:
    assert [name for name, _ in errors_of_labels(labels)] == names
