"""A definition is taken as it was meant, or refused with every fault named by the path that leads to it."""

from __future__ import annotations

import json
import pickle
import re
from copy import deepcopy
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.definition import (
    MAX_STEPS,
    DefinitionError,
    Fault,
    PipelineDefinition,
    ReminderDefinition,
    StepDefinition,
    load,
    parse,
)

steady = settings(deadline=None, derandomize=True, max_examples=150)
ROLES = ("keyword-researcher", "content-brief-writer", "blog-writer")
TEMPLATES = ("audit",)

CONTENT_BRIEF = """
key: content-brief
name: Content brief
steps:
  - id: research
    agent_role: keyword-researcher
    description: Find keywords.
    params: {market: se, top: 10}
    retry: &patient {max_attempts: 3, strategy: exponential, base_seconds: 5, max_seconds: 300}
    timeout_seconds: 300
  - id: brief
    agent_role: content-brief-writer
    depends_on: [research]
    requires_approval: true
    retry: *patient
  - id: sign-off
    human_role: editor
    is_approval_gate: true
    depends_on: [brief]
    due_seconds: 86400
    reminders: [3600, {after_seconds: 7200, human_role: chief-editor}]
    on_timeout: escalate
  - id: publish
    agent_role: blog-writer
    depends_on: [sign-off]
    when: "brief.data.ready"
    for_each: "brief.data.items"
    on_upstream_failure: continue
    parallel: true
"""


def read(data: Any, **options: Any) -> PipelineDefinition:
    return parse(data, known_roles=ROLES, known_templates=TEMPLATES, **options)


def agent(id_: str, /, **more: Any) -> dict[str, Any]:
    return {"id": id_, "agent_role": "blog-writer", **more}


def person(id_: str, /, **more: Any) -> dict[str, Any]:
    return {"id": id_, "human_role": "editor", **more}


def pipeline(*steps: Any, **more: Any) -> dict[str, Any]:
    return {"key": "k", "name": "N", "steps": list(steps), **more}


def faults_of(data: Any, **options: Any) -> dict[str, str]:
    with pytest.raises(DefinitionError) as caught:
        read(data, **options)
    return {fault.path: fault.message for fault in caught.value.faults}


def faults_of_text(text: str, filename: str = "p.yaml") -> dict[str, str]:
    with pytest.raises(DefinitionError) as caught:
        load(text, filename=filename)
    return {fault.path: fault.message for fault in caught.value.faults}


# ---- What is taken


def test_the_file_of_the_documentation_is_taken() -> None:
    definition = read(load(CONTENT_BRIEF, filename="content-brief.yaml"))

    research, brief, gate, publish = definition.steps
    assert (definition.key, definition.name) == ("content-brief", "Content brief")
    assert research.retry is not None
    assert (research.retry.max_attempts, research.retry.strategy) == (3, "exponential")
    assert research.params == {"market": "se", "top": 10}
    assert brief.requires_approval
    assert brief.retry == research.retry
    assert (gate.human_role, gate.is_approval_gate, gate.due_seconds) == ("editor", True, 86400)
    assert gate.reminders == (ReminderDefinition(3600), ReminderDefinition(7200, "chief-editor"))
    assert (publish.when, publish.for_each) == ("brief.data.ready", "brief.data.items")
    assert publish.on_upstream_failure == "continue"


def test_json_and_yaml_say_the_same() -> None:
    data = load(CONTENT_BRIEF, filename="p.yaml")

    assert load(json.dumps(data), filename="p.JSON") == data


def test_steps_without_dependencies_run_in_a_row_and_parallel_ones_side_by_side() -> None:
    row = [agent("a"), agent("b"), agent("c", parallel=True), agent("d", parallel=True), agent("e")]
    free = [agent("f", depends_on=[]), agent("g", depends_on=["c", "d"], parallel=True)]

    found = {step.id: "".join(step.depends_on) for step in read(pipeline(*row, *free)).steps}

    assert found == {"a": "", "b": "a", "c": "a", "d": "a", "e": "d", "f": "", "g": "cd"}


def test_parallel_steps_at_the_beginning_all_start_at_once() -> None:
    definition = read(pipeline(agent("a", parallel=True), agent("b", parallel=True)))

    assert [step.depends_on for step in definition.steps] == [(), ()]


def test_a_template_may_say_who_does_the_step() -> None:
    given_step = {"id": "a", "template": "audit", "is_approval_gate": True, "due_seconds": 5}

    assert read(pipeline(given_step)).steps == (StepDefinition(**given_step),)


def test_a_null_is_as_good_as_nothing() -> None:
    assert read(pipeline(agent("a", name=None, retry=None))) == read(pipeline(agent("a")))


def test_a_longer_first_delay_raises_the_default_of_the_longest() -> None:
    retry = read(pipeline(agent("a", retry={"base_seconds": 900}))).steps[0].retry

    assert retry is not None
    assert (retry.base_seconds, retry.max_seconds) == (900, 900)


def test_what_was_parsed_does_not_change_when_its_source_does() -> None:
    data = pipeline(agent("a", params={"list": [1]}))
    definition = read(data)

    data["steps"][0]["params"]["list"].append(2)
    definition.to_dict()["steps"][0]["params"]["list"].append(3)

    assert definition.steps[0].params == {"list": [1]}


def test_expressions_are_checked_by_whoever_knows_them() -> None:
    seen: list[str] = []

    def check(text: str) -> str | None:
        seen.append(text)
        return "unknown name wrong" if text == "wrong" else None

    data = pipeline(agent("a", when="right"), agent("b", for_each="wrong"))

    faults = faults_of(data, check_expression=check)

    assert seen == ["right", "wrong"]
    assert faults == {"steps[1].for_each": "unknown name wrong"}


# ---- The canonical form


identifiers = st.from_regex(r"[a-z0-9][a-z0-9_-]{0,8}", fullmatch=True)
letters = st.characters(exclude_characters="\0", exclude_categories=["Cs"])
texts = st.text(letters, min_size=1, max_size=20).filter(str.strip)
numbers = st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False)
seconds = st.floats(0.001, 86400) | st.integers(1, 86400)
objects = st.dictionaries(
    texts,
    st.recursive(
        st.none() | st.booleans() | numbers | texts,
        lambda inner: st.lists(inner) | st.dictionaries(texts, inner),
    ),
    max_size=3,
)
COMMON = {
    "name": texts, "description": st.text("ab \n"), "params": objects, "parallel": st.booleans(), "when": texts,
    "for_each": texts, "on_upstream_failure": st.sampled_from(("fail", "skip", "continue")),
    "priority": st.integers(1, 20), "max_rounds": st.integers(1, 50), "dependency_timeout_seconds": seconds,
}  # fmt: skip
RETRY = st.fixed_dictionaries(
    {}, optional={"max_attempts": st.integers(1, 50), "base_seconds": seconds, "jitter": st.floats(0, 1)}
)
ASKED = {"due_seconds": seconds, "on_timeout": st.sampled_from(("escalate", "approve", "reject"))}
RUN = {"retry": RETRY, "timeout_seconds": seconds}
STEPS = st.one_of(
    st.fixed_dictionaries({"agent_role": st.sampled_from(ROLES)}, optional=COMMON | RUN),
    st.fixed_dictionaries(
        {"agent_role": st.sampled_from(ROLES), "requires_approval": st.just(True)}, optional=ASKED
    ),
    st.fixed_dictionaries(
        {"human_role": identifiers}, optional=COMMON | ASKED | {"is_approval_gate": st.booleans()}
    ),
    st.fixed_dictionaries({"human_role": identifiers, "reminders": st.just([1, 2.5, {"after_seconds": 9}])}),
    st.fixed_dictionaries({"template": st.sampled_from(TEMPLATES)}, optional=COMMON | ASKED | RUN),
)


@st.composite
def valid(draw: st.DrawFn) -> dict[str, Any]:
    """Definitions with every key that there is, in random company."""
    ids = draw(st.lists(identifiers, min_size=1, max_size=5, unique=True))
    steps = [{"id": name, **draw(STEPS)} for name in ids]
    for place in draw(st.sets(st.integers(0, len(ids) - 1))):
        steps[place]["depends_on"] = (
            draw(st.lists(st.sampled_from(ids[:place]), unique=True)) if place else []
        )
    return pipeline(*steps, params=draw(objects), description=draw(st.text("ab \n")))


def through_jsonb(text: str) -> Any:
    """What PostgreSQL's jsonb makes of JSON: keys sorted, numbers as plain decimals."""

    def plain(value: Any) -> str:
        if isinstance(value, dict):
            inner = sorted(value.items(), key=lambda item: (len(item[0]), item[0]))
            return "{" + ",".join(f"{json.dumps(key)}:{plain(each)}" for key, each in inner) + "}"
        if isinstance(value, list):
            return "[" + ",".join(map(plain, value)) + "]"
        return format(value, "f") if isinstance(value, Decimal) else json.dumps(value)

    return json.loads(plain(json.loads(text, parse_float=Decimal)))


@steady
@given(valid())
def test_the_canonical_form_is_read_back_unchanged_also_from_the_database(data: dict[str, Any]) -> None:
    definition = read(data)

    stored = json.dumps(definition.to_dict())

    for again in (read(json.loads(stored)), read(through_jsonb(stored))):
        assert again == definition
        assert again.to_dict() == definition.to_dict()
        assert again.digest() == definition.digest()


def test_a_number_has_one_form_however_it_is_written() -> None:
    for one, other in (
        (10**22, 1e22),
        (300.0, 300),
        (0, -0.0),
        (11529215046068473000, 1.1529215046068473e19),
    ):
        digests = {read(pipeline(agent("a", params={"n": value}))).digest() for value in (one, other)}

        assert len(digests) == 1


def test_another_meaning_has_another_digest() -> None:
    definitions = [
        read(pipeline(agent("a"), agent("b"))),
        read(pipeline(agent("a"), agent("b", parallel=True))),
        read(pipeline(agent("a"), agent("b", params={"x": 1}))),
    ]

    assert len({each.digest() for each in definitions}) == 3
    assert definitions[0].digest() == read(pipeline(agent("a"), agent("b", depends_on=["a"]))).digest()


# ---- What is refused

OF_THE_WHOLE: list[tuple[dict[str, Any], str, str]] = [
    ({"key": "Not A Key"}, "key", "lower-case"),
    ({"key": "a" * 64}, "key", "1 to 63"),
    ({"key": None}, "key", "is missing"),
    ({"name": 7}, "name", "must be text, not a number"),
    ({"name": " "}, "name", "must not be blank"),
    ({"name": "x" * 201}, "name", "at most 200 characters"),
    ({"nam": "x"}, "nam", 'unknown key "nam", did you mean name?'),
    ({"odd key": 1}, '["odd key"]', "unknown key"),
    ({"params": []}, "params", "must be an object, not a list"),
    ({"steps": []}, "steps", "at least one"),
    ({"steps": [3]}, "steps[0]", "must be an object, not a number"),
    ({"steps": [{"agent_role": "blog-writer"}]}, "steps[0]", "id is missing"),
    ({"steps": [{"id": "a"}]}, "steps[0]", "agent_role, human_role or template is missing"),
    ({"steps": [agent("a"), agent("a")]}, "steps[1].id", '"a" is already the id of steps[0]'),
]
OF_AN_AGENTS_STEP: list[tuple[dict[str, Any], str, str]] = [
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
    ({"retry": {"jitter": 2}}, "retry.jitter", "at most 1"),
    ({"retry": {"tries": 2}}, "retry.tries", "unknown key"),
    ({"timeout_seconds": 0}, "timeout_seconds", "above 0"),
    ({"timeout_seconds": 1e9}, "timeout_seconds", "at most 604,800"),
    ({"timeout_seconds": float("inf")}, "timeout_seconds", "must be a number"),
    ({"dependency_timeout_seconds": "1"}, "dependency_timeout_seconds", "must be a number"),
    ({"due_seconds": 5}, "due_seconds", "person's step"),
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
]
OF_A_PERSONS_STEP: list[tuple[dict[str, Any], str, str]] = [
    ({"requires_approval": True}, "requires_approval", "agent's step"),
    ({"retry": {}}, "retry", "agent's step"),
    ({"timeout_seconds": 5}, "timeout_seconds", "due_seconds"),
    ({"on_timeout": "shrug"}, "on_timeout", "escalate, approve, reject"),
    ({"due_seconds": 9, "reminders": [9]}, "reminders[0]", "before due_seconds"),
    ({"reminders": [9, 3]}, "reminders[1]", "after the reminder before"),
    ({"reminders": [{"to": "x"}]}, "reminders[0]", "after_seconds is missing"),
]


@pytest.mark.parametrize(("change", "path", "message"), OF_THE_WHOLE)
def test_a_fault_of_the_pipeline_is_named_with_its_path(
    change: dict[str, Any], path: str, message: str
) -> None:
    assert message in faults_of(pipeline(agent("a")) | change)[path]


@pytest.mark.parametrize(("change", "path", "message"), OF_AN_AGENTS_STEP)
def test_a_fault_of_an_agents_step_is_named_with_its_path(change: Any, path: str, message: str) -> None:
    assert message in faults_of(pipeline(agent("first"), agent("a") | change))[f"steps[1].{path}"]


@pytest.mark.parametrize(("change", "path", "message"), OF_A_PERSONS_STEP)
def test_a_fault_of_a_persons_step_is_named_with_its_path(change: Any, path: str, message: str) -> None:
    assert message in faults_of(pipeline(person("a") | change))[f"steps[0].{path}"]


def test_every_fault_is_named_at_once() -> None:
    faults = faults_of(
        {"key": "K", "steps": [agent("a", colour="red"), agent("b", depends_on=["x", "y"]), None]}
    )

    assert set(faults) == {
        "key",
        "",
        "steps[0].colour",
        "steps[1].depends_on[0]",
        "steps[1].depends_on[1]",
        "steps[2]",
    }


def test_a_cycle_is_named_by_its_steps() -> None:
    faults = faults_of(pipeline(agent("research", depends_on=["brief"]), agent("brief"), agent("end")))

    assert faults == {
        "steps[0].depends_on": "the steps wait for each other in a cycle: research -> brief -> research"
    }


def test_roles_of_people_are_checked_only_if_they_are_known() -> None:
    data = pipeline(person("a", reminders=[{"after_seconds": 5, "human_role": "nobody"}]))

    assert read(data).steps[0].human_role == "editor"
    assert set(faults_of(data, known_human_roles=["editor"])) == {"steps[0].reminders[0].human_role"}


def test_two_thousand_steps_are_taken_and_one_more_is_not() -> None:
    steps = [agent(f"s{number}") for number in range(MAX_STEPS)]

    assert len(read(pipeline(*steps)).steps) == MAX_STEPS
    assert faults_of(pipeline(*steps, agent("more"))) == {"steps": "must have at most 2,000 members"}


def test_parallel_steps_cannot_multiply_dependencies_without_bound() -> None:
    roots = [agent(f"r{number}", depends_on=[]) for number in range(900)]
    joins = [agent("join", depends_on=[each["id"] for each in roots])]
    joins += [agent(f"j{number}", parallel=True) for number in range(900)]

    assert faults_of(pipeline(*roots, *joins)) == {"steps": "must have at most 50,000 dependencies together"}


def test_params_may_not_be_too_deep() -> None:
    deep: Any = 1
    for _ in range(30):
        deep = [deep]

    assert "nested deeper" in " ".join(faults_of(pipeline(agent("a", params={"x": deep}))).values())


def test_an_error_survives_being_pickled_and_prints_its_first_faults() -> None:
    error = DefinitionError([Fault(f"steps[{number}]", "is wrong") for number in range(12)])

    assert pickle.loads(pickle.dumps(error)).faults == error.faults
    assert str(error).startswith("steps[0]: is wrong; steps[1]: is wrong; ")
    assert str(error).endswith("; and 2 more")
    assert str(DefinitionError([Fault("", "key is missing")])) == "key is missing"


# ---- Any change to a valid definition is taken or refused, never anything else

STRANGE = st.sampled_from(
    (None, True, 0, -1, 1.5, 10**30, "", "x", "a\0", "\ud800", [], {}, ["a"], {"a": 1}, {1: 2}, b"x")
)


def nodes(value: Any, path: str = "") -> list[tuple[Any, Any]]:
    found = [(value, key) for key in (value if isinstance(value, dict) else range(len(value)))]
    for _, key in list(found):
        if isinstance(value[key], dict | list):
            found += nodes(value[key])
    return found


def follow(data: Any, path: str) -> Any:
    """Walks a fault's path; raises if it leads nowhere."""
    for index, quoted, plain in re.findall(
        r'\[(\d+)\]|\[("(?:[^"\\]|\\.)*")\]|([A-Za-z_][A-Za-z0-9_-]*)', path
    ):
        data = data[int(index)] if index else data[json.loads(quoted) if quoted else plain]
    return data


@settings(steady, max_examples=400)
@given(valid(), st.data())
def test_any_change_is_taken_or_refused_with_paths_that_exist(
    original: dict[str, Any], data: st.DataObject
) -> None:
    changed = deepcopy(original)
    for _ in range(data.draw(st.integers(1, 3))):
        holder, key = data.draw(st.sampled_from(nodes(changed)))
        match data.draw(st.sampled_from(("replace", "remove", "add", "repeat"))):
            case "replace":
                holder[key] = data.draw(STRANGE)
            case "remove":
                del holder[key]
            case "add" if isinstance(holder, dict):
                holder[
                    data.draw(st.sampled_from(("extra", "odd key", "depends_on", "human_role", 'quo"te', "")))
                ] = 1
            case _ if isinstance(holder, list):
                holder.append(deepcopy(holder[key]))
        if not nodes(changed):
            break

    try:
        definition = read(changed)
    except DefinitionError as error:
        refusal = error
    else:
        assert read(definition.to_dict()) == definition
        return
    str(refusal).encode()
    for fault in refusal.faults:
        follow(changed, fault.path)


# ---- Files


def test_words_and_dates_stay_text_and_numbers_are_numbers() -> None:
    text = (
        "{a: no, b: on, c: 12:30, d: 2024-01-01, e: 007, f: 1e3, g: 1.5, h: -2, i: true, j: ~, k: 0x1f, <: x}"
    )

    assert load(text, filename="p.yaml") == {
        "a": "no", "b": "on", "c": "12:30", "d": "2024-01-01", "e": "007", "f": 1000.0, "g": 1.5, "h": -2,
        "i": True, "j": None, "k": "0x1f", "<": "x",
    }  # fmt: skip


REFUSED_FILES = [
    ("a: 1\nb: {c: 1, c: 2}\na: 3", "p.yaml", {"b.c": "is given twice", "a": "is given twice"}),
    (
        '{"a": 1, "b": [{"c": 1, "c": 2}], "a": 3}',
        "p.json",
        {"b[0].c": "is given twice", "a": "is given twice"},
    ),
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
    ("- a", "p.yaml", {"": "p.yaml: holds no object"}),
    ("a: \ud800", "p.yaml", {"": "surrogate"}),
    ("a: \x01", "p.yaml", {"": "control characters"}),
    ("a: " + "x" * 256 * 1024, "p.yaml", {"": "larger than 256 kB"}),
    ("[" * 200_000, "p.yaml", {"": "nested deeper than 40"}),
    ("[" * 200_000, "p.json", {"": "nested deeper than 40"}),
    ("a: &a [*a, *a]", "p.yaml", {"": "nested deeper than 40"}),
]


@pytest.mark.parametrize(("text", "filename", "expected"), REFUSED_FILES, ids=range(len(REFUSED_FILES)))
def test_a_file_is_refused_with_its_faults(text: str, filename: str, expected: dict[str, str]) -> None:
    faults = faults_of_text(text, filename)

    assert faults.keys() == expected.keys()
    assert all(part in faults[path] for path, part in expected.items())


def test_aliases_that_multiply_are_stopped() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 8)}]" for n in range(1, 30)]

    assert "more than 100,000 values" in faults_of_text("\n".join(lines))[""]


@steady
@given(st.text(st.sampled_from("ab:-[]{}&*!|>'\"\n ,#?<1.") | st.characters(), max_size=60), st.booleans())
def test_any_text_is_an_object_or_refused(text: str, as_json: bool) -> None:
    try:
        data = load(text, filename="p.json" if as_json else "p.yaml")
    except DefinitionError:
        return
    assert isinstance(data, dict)
    assert json.loads(json.dumps(data)) == data
