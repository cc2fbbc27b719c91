"""Which definitions and files are refused, with the path of every error."""

from __future__ import annotations

import json
import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines import definition as shapes
from pipelines.definition import DefinitionError, InputError, load
from tests.unit.definitions.steps import agent, errors_of, errors_when, pipeline, read, steady


def person(id_: str, /, **more: Any) -> dict[str, Any]:
    return {"id": id_, "human_role": "editor", **more}


Errors = list[tuple[dict[str, Any], str, str]]
DEEP: Any = json.loads("[" * 30 + "]" * 30)
OF_THE_WHOLE: Errors = [
    ({"key": "Not A Key"}, "key", "lower-case"),
    ({"key": "a" * 64}, "key", "1 to 63"),
    ({"key": None}, "key", "is missing"),
    ({"name": 7}, "name", "must be text, not a number"),
    ({"name": " "}, "name", "must not be blank"),
    ({"nam": "x"}, "nam", 'unknown key "nam", did you mean name?'),
    ({"odd key": 1}, '["odd key"]', "unknown key"),
    ({"steps": []}, "steps", "at least one"),
    ({"steps": [3]}, "steps[0]", "must be an object, not a number"),
    ({"steps": [{"agent_role": "blog-writer"}]}, "steps[0].id", "is missing"),
    ({"steps": [{"id": "a"}]}, "steps[0].agent_role", "unless human_role or template is given"),
    ({"steps": [agent("a"), agent("a")]}, "steps[1].id", '"a" is already the id of steps[0]'),
]
OF_AN_AGENTS_STEP: Errors = [
    ({"id": "A"}, "id", "lower-case"),
    ({"name": "\ud800"}, "name", "surrogate"),
    ({"description": "a\0b"}, "description", "NUL"),
    ({"human_role": "editor"}, "human_role", "together with agent_role"),
    ({"agent_role": "blog-writr"}, "agent_role", "did you mean blog-writer?"),
    ({"template": "nothing"}, "template", 'unknown template "nothing"'),
    ({"is_approval_gate": True}, "is_approval_gate", "person's step"),
    ({"parallel": "yes"}, "parallel", "must be true or false"),
    ({"depends_on": "b"}, "depends_on", "must be a list"),
    ({"depends_on": None}, "depends_on", "[] means"),
    ({"depends_on": [3]}, "depends_on[0]", "must be text"),
    ({"depends_on": ["a"]}, "depends_on[0]", "cannot depend on itself"),
    ({"depends_on": ["firs"]}, "depends_on[0]", 'unknown step "firs", did you mean first?'),
    ({"depends_on": ["first", "first"]}, "depends_on[1]", "named twice"),
    ({"retry": 3}, "retry", "must be an object"),
    ({"retry": {"max_attempts": 0}}, "retry.max_attempts", "at least 1 and at most 50"),
    ({"retry": {"max_attempts": 51}}, "retry.max_attempts", "at most 50"),
    ({"retry": {"max_attempts": 2.5}}, "retry.max_attempts", "whole number"),
    ({"retry": {"max_attempts": True}}, "retry.max_attempts", "must be a number"),
    ({"retry": {"strategy": "random"}}, "retry.strategy", "exponential, linear, fixed"),
    ({"retry": {"base_seconds": -1}}, "retry.base_seconds", "at least 0"),
    ({"retry": {"base_seconds": 9, "max_seconds": 8}}, "retry.max_seconds", "below base_seconds"),
    ({"retry": {"tries": 2}}, "retry.tries", "unknown key"),
    ({"timeout_seconds": 0}, "timeout_seconds", "above 0"),
    ({"timeout_seconds": 1e9}, "timeout_seconds", "at most 604,800"),
    ({"timeout_seconds": float("inf")}, "timeout_seconds", "must be a number"),
    ({"due_seconds": 5}, "due_seconds", "person's step"),
    ({"quorum": 2}, "quorum", "person's step"),
    ({"self_approval": False}, "self_approval", "person's step"),
    ({"escalation": [{"after_seconds": 5, "human_role": "a"}]}, "escalation", "person's step"),
    ({"priority": 21}, "priority", "at most 20"),
    ({"max_rounds": 0}, "max_rounds", "at least 1"),
    ({"on_upstream_failure": "stop"}, "on_upstream_failure", "fail, skip, continue"),
    ({"when": ""}, "when", "must not be blank"),
    ({"for_each": "x" * 2001}, "for_each", "at most 2,000"),
    ({"params": {"x": [{"y": "\0"}]}}, "params.x[0].y", "NUL"),
    ({"params": {"\ud800": 1}}, "params", "surrogate"),
    ({"params": {1: 1}}, "params", "must be text, not a number"),
    ({"params": {"x": {1, 2}}}, "params.x", "must be a JSON value"),
    ({"params": {"x": 2**64 + 1}}, "params.x", "a number that JSON cannot hold"),
    ({"params": {"x": float("nan")}}, "params.x", "a number that JSON cannot hold"),
    ({"params": {"x": [0] * 60_000}}, "params.x[49998]", "more than 50,000 values"),
    ({"params": {"x": DEEP}}, "params.x" + "[0]" * 19, "nested deeper than 20"),
]
OF_A_PERSONS_STEP: Errors = [
    ({"requires_approval": True}, "requires_approval", "agent's step"),
    ({"retry": {}}, "retry", "agent's step"),
    ({"timeout_seconds": 5}, "timeout_seconds", "due_seconds"),
    ({"on_timeout": "shrug"}, "on_timeout", "escalate, approve, reject"),
    ({"on_timeout": "escalate"}, "on_timeout", "needs due_seconds"),
    ({"due_seconds": 9, "on_timeout": "approve"}, "on_timeout", "can only be escalate"),
    ({"quorum": 2}, "quorum", "is_approval_gate"),
    ({"voters": 2}, "voters", "is_approval_gate"),
    ({"self_approval": False}, "self_approval", "is_approval_gate"),
    ({"is_approval_gate": True, "quorum": 0}, "quorum", "at least 1 and at most 100"),
    ({"is_approval_gate": True, "quorum": 3, "voters": 2}, "voters", "fewer than quorum"),
    ({"is_approval_gate": True, "self_approval": "no"}, "self_approval", "true or false"),
    ({"escalation": [60]}, "escalation[0]", "must be an object"),
    ({"escalation": [{"after_seconds": 60}]}, "escalation[0].human_role", "is missing"),
    ({"escalation": [{"human_role": "head"}]}, "escalation[0].after_seconds", "is missing"),
    ({"escalation": [{"after_seconds": 9, "human_role": "a"}] * 2}, "escalation[1]", "after the one before"),
    (
        {"due_seconds": 9, "escalation": [{"after_seconds": 9, "human_role": "a"}]},
        "escalation[0]",
        "before due_seconds",
    ),
    ({"due_seconds": 9, "reminders": [9]}, "reminders[0]", "before due_seconds"),
    ({"reminders": [9, 3]}, "reminders[1]", "after the reminder before"),
    ({"reminders": [None]}, "reminders[0]", "must be a number, not null"),
    ({"reminders": [-1]}, "reminders[0]", "must be above 0"),
    ({"reminders": [{"to": "x"}]}, "reminders[0].after_seconds", "is missing"),
]
CASES = [
    *((pipeline(agent("a")) | change, path, message) for change, path, message in OF_THE_WHOLE),
    *(
        (pipeline(agent("first"), agent("a") | change), f"steps[1].{path}", message)
        for change, path, message in OF_AN_AGENTS_STEP
    ),
    *(
        (pipeline(person("a") | change), f"steps[0].{path}", message)
        for change, path, message in OF_A_PERSONS_STEP
    ),
]


@pytest.mark.parametrize(
    ("data", "path", "message"), CASES, ids=[f"{path} {message}" for _, path, message in CASES]
)
def test_an_error_names_its_path(data: Any, path: str, message: str) -> None:
    assert message in errors_of(data)[path]


def test_all_errors_are_reported_at_once() -> None:
    steps = [agent("a", colour="red"), agent("b", depends_on=["x", "y"]), None]

    errors = errors_of({"key": "K", "steps": steps})

    assert " ".join(sorted(errors)) == (
        "key name steps[0].colour steps[1].depends_on[0] steps[1].depends_on[1] steps[2]"
    )


def test_a_cycle_is_reported_with_its_steps() -> None:
    errors = errors_of(pipeline(agent("research", depends_on=["brief"]), agent("brief"), agent("end")))

    assert errors["steps[0].depends_on"].endswith("in a cycle: research -> brief -> research")
    nameless = {"agent_role": "blog-writer", "depends_on": ["brief"]}
    assert errors_of(pipeline(nameless, agent("brief"))) == {"steps[0].id": "is missing"}


def test_roles_of_people_are_checked_only_if_they_are_known() -> None:
    data = pipeline(person("a", reminders=[{"after_seconds": 5, "human_role": "nobody"}]))

    assert read(data).steps[0].human_role == "editor"
    assert set(errors_of(data, known_human_roles=["editor"])) == {"steps[0].reminders[0].human_role"}


def test_two_thousand_steps_are_accepted_and_one_more_is_refused() -> None:
    steps = [agent(f"s{number}") for number in range(shapes.MAX_STEPS)]

    assert len(read(pipeline(*steps)).steps) == shapes.MAX_STEPS
    assert errors_of(pipeline(*steps, agent("more"))) == {"steps": "must have at most 2,000 members"}


def test_parallel_steps_cannot_multiply_dependencies_without_bound() -> None:
    roots = [agent(f"r{number}", depends_on=[]) for number in range(900)]
    joins = [agent("join", depends_on=[each["id"] for each in roots])]
    joins += [agent(f"j{number}", parallel=True) for number in range(900)]

    assert errors_of(pipeline(*roots, *joins)) == {"steps": "must have at most 50,000 dependencies together"}


def test_a_definition_error_can_be_pickled_and_prints_its_first_errors() -> None:
    error = DefinitionError([InputError(f"steps[{number}]", "is wrong") for number in range(12)])

    assert pickle.loads(pickle.dumps(error)).errors == error.errors
    assert str(error).startswith("steps[0]: is wrong; steps[1]: is wrong; ")
    assert str(error).endswith("; and 2 more")
    assert str(DefinitionError([InputError("", "is empty")])) == "is empty"


def test_words_and_dates_stay_text_and_numbers_stay_numbers() -> None:
    text = "[no, on, 12:30, 2024-01-01, 007, 0x1f, <, 1e3, 1.5, -2, true, ~]"

    expected = ["no", "on", "12:30", "2024-01-01", "007", "0x1f", "<", 1000.0, 1.5, -2, True, None]
    assert load(f"a: {text}", filename="p.yaml") == {"a": expected}


BOMB = "a0: &a0 [x, x, x, x, x, x, x, x]\n"
BOMB += "\n".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 8)}]" for n in range(1, 30))
REFUSED_FILES = [
    (BOMB, "p.yaml", {"": "more than 100,000 values"}),
    ("a: 1\nb: {c: 1, c: 2}\na: 3", "p.yaml", {"b.c": "is given twice", "a": "is given twice"}),
    ('{"a": 1, "b": [{"c": 1, "c": 2}], "a": 3}', "p.json", {"b[0].c": "given twice", "a": "given twice"}),
    ("a: &x {b: 1}\nc: {<<: *x}", "p.yaml", {"c": "merge keys"}),
    ("3: x\n? [a]\n: y", "p.yaml", {"": "must be text, not a list"}),
    ("a: [1\nb: 2", "p.yaml", {"": "p.yaml: line 2, column 2: "}),
    ('{"a": ]', "p.json", {"": "p.json: line 1, column 7: "}),
    ("a: 1\n---\nb: 2", "p.yaml", {"": "another document"}),
    ("a: !!python/object:os.system x", "p.yaml", {"": "the tag"}),
    ("a: !!timestamp 2001-99-99", "p.yaml", {"": "the tag"}),
    ('{"a": NaN, "b": 1e999}', "p.json", {"a": "finite", "b": "finite"}),
    ("a: " + "1" * 5000, "p.yaml", {"": "digits"}),
    ("", "p.yaml", {"": "p.yaml: is empty"}),
    ("- a", "p.yaml", {"": "p.yaml: does not hold an object"}),
    ("a: \ud800", "p.yaml", {"": "surrogate"}),
    ("a: \x01", "p.yaml", {"": "control characters"}),
    ("a: " + "x" * 256 * 1024, "p.yaml", {"": "larger than 256 kB"}),
    ("[" * 200_000, "p.yaml", {"": "nested deeper than 40"}),
    ("[" * 200_000, "p.json", {"": "nested deeper than 40"}),
    ("a: &a [*a, *a]", "p.yaml", {"": "nested deeper than 40"}),
]


@pytest.mark.parametrize(("text", "filename", "expected"), REFUSED_FILES, ids=range(len(REFUSED_FILES)))
def test_a_file_is_refused_with_its_errors(text: str, filename: str, expected: dict[str, str]) -> None:
    errors = errors_when(lambda: load(text, filename=filename))

    assert errors.keys() == expected.keys()
    assert all(part in errors[path] for path, part in expected.items())


@steady
@given(st.text(st.sampled_from("ab:-[]{}&*!|>'\"\n ,#?<1.") | st.characters(), max_size=60), st.booleans())
def test_every_text_is_read_as_an_object_or_refused(text: str, as_json: bool) -> None:
    try:
        data = load(text, filename="p.json" if as_json else "p.yaml")
    except DefinitionError:
        return
    assert isinstance(data, dict)
    assert json.loads(json.dumps(data)) == data
