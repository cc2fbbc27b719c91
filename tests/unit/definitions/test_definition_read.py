"""Which definitions are accepted, their canonical form, and random changes to valid ones."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from copy import deepcopy
from decimal import Decimal
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines import definition as shapes
from pipelines.definition import DefinitionError, load
from tenants.plain_names import error_of_name
from tests.unit.definitions.steps import ROLES, TEMPLATES, agent, errors_of, pipeline, read, steady

CONTENT_BRIEF = """
key: content-brief
name: Content brief
steps:
  - id: research
    agent_role: keyword-researcher
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


def test_the_documented_file_is_accepted_as_yaml_and_as_json() -> None:
    data = load(CONTENT_BRIEF, filename="content-brief.yaml")

    research, brief, gate, publish = read(data).steps

    assert load(json.dumps(data), filename="p.JSON") == data
    assert research.retry == brief.retry == shapes.RetryDefinition(3, shapes.RetryStrategy.EXPONENTIAL, 5)
    assert research.params == {"market": "se", "top": 10}
    assert (brief.requires_approval, gate.is_approval_gate, gate.human_role) == (True, True, "editor")
    assert gate.reminders == (
        shapes.ReminderDefinition(3600),
        shapes.ReminderDefinition(7200, "chief-editor"),
    )
    assert (publish.when, publish.for_each) == ("brief.data.ready", "brief.data.items")
    assert publish.on_upstream_failure == "continue"


def test_steps_without_dependencies_run_in_a_row_and_parallel_ones_side_by_side() -> None:
    row = [agent("z", parallel=True), agent("a", parallel=True), agent("b"), agent("c", parallel=True)]
    rest = [agent("d"), agent("e", depends_on=[]), agent("f", depends_on=["c", "d"], parallel=True)]

    dependencies = {step.id: "".join(step.depends_on) for step in read(pipeline(*row, *rest)).steps}

    assert dependencies == {"z": "", "a": "", "b": "a", "c": "a", "d": "c", "e": "", "f": "cd"}


def test_a_template_may_say_who_does_the_step() -> None:
    given_step: dict[str, Any] = {"id": "a", "template": "audit", "is_approval_gate": True, "due_seconds": 5}

    assert read(pipeline(given_step)).steps == (shapes.StepDefinition(**given_step),)


def test_null_means_the_same_as_an_absent_member() -> None:
    assert read(pipeline(agent("a", name=None, retry=None))) == read(pipeline(agent("a")))


def test_a_longer_first_delay_raises_the_default_maximum_delay() -> None:
    retry = read(pipeline(agent("a", retry={"base_seconds": 900}))).steps[0].retry

    assert retry == shapes.RetryDefinition(base_seconds=900, max_seconds=900)


def test_what_was_parsed_does_not_change_when_its_source_does() -> None:
    data = pipeline(agent("a", params={"list": [1]}))
    definition = read(data)

    data["steps"][0]["params"]["list"].append(2)
    definition.to_dict()["steps"][0]["params"]["list"].append(3)

    assert definition.steps[0].params == {"list": [1]}


def test_expressions_are_checked_by_the_function_that_the_caller_passes() -> None:
    seen: list[str] = []

    def check(text: str) -> str | None:
        seen.append(text)
        return "unknown name wrong" if text == "wrong" else None

    data = pipeline(agent("a", when="right"), agent("b", for_each="wrong"))

    errors = errors_of(data, check_expression=check)

    assert seen == ["right", "wrong"]
    assert errors == {"steps[1].for_each": "unknown name wrong"}


# fmt: off
identifiers = st.from_regex(r"[a-z0-9][a-z0-9_-]{0,8}", fullmatch=True)
letters = st.characters(exclude_characters="\0", exclude_categories=["Cs"])
texts = st.text(letters, min_size=1, max_size=20).filter(str.strip)
numbers = st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False)
seconds = st.floats(0.001, 86400) | st.integers(1, 86400)
names = texts.filter(lambda text: error_of_name(text) is None)
leaves = numbers | texts | st.sampled_from((None, True))
values: st.SearchStrategy[Any] = st.deferred(lambda: leaves | st.lists(values, max_size=2) | objects)
objects: st.SearchStrategy[dict[str, Any]] = st.deferred(lambda: st.dictionaries(texts, values, max_size=2))
COMMON = {
    "name": names, "description": st.text("ab \n"), "params": objects, "parallel": st.booleans(),
    "when": texts, "for_each": texts, "on_upstream_failure": st.sampled_from(("fail", "skip", "continue")),
    "priority": st.integers(1, 20), "max_rounds": st.integers(1, 50), "dependency_timeout_seconds": seconds,
}
RETRY = {"max_attempts": st.integers(1, 50), "base_seconds": seconds, "jitter": st.floats(0, 1)}
RUN = {"retry": st.fixed_dictionaries({}, optional=RETRY), "timeout_seconds": seconds}
HUMAN = {"due_seconds": seconds, "escalation": st.just([{"after_seconds": 0.0001, "human_role": "head"}])}
APPROVED = HUMAN | {"quorum": st.integers(1, 3), "voters": st.integers(3, 100), "self_approval": st.booleans()}
TIMED = st.fixed_dictionaries({"due_seconds": seconds, "on_timeout": st.sampled_from(("escalate", "approve", "reject"))})
GATED = {"agent_role": st.sampled_from(ROLES), "requires_approval": st.just(True)}
REMINDED = {"human_role": identifiers, "reminders": st.just([1, 2.5, {"after_seconds": 9}])}
STEPS = st.one_of(
    st.fixed_dictionaries({"agent_role": st.sampled_from(ROLES)}, optional=COMMON | RUN),
    st.fixed_dictionaries(GATED, optional=APPROVED),
    st.builds(lambda step, timed: step | timed, st.fixed_dictionaries(GATED), TIMED),
    st.fixed_dictionaries(REMINDED, optional=COMMON | {"is_approval_gate": st.booleans()}),
    st.fixed_dictionaries({"human_role": identifiers}, optional=COMMON | HUMAN),
    st.fixed_dictionaries({"template": st.sampled_from(TEMPLATES)}, optional=COMMON | HUMAN | RUN),
)
# fmt: on


@st.composite
def valid(draw: st.DrawFn) -> dict[str, Any]:
    """Draw definitions that use every key, in random combinations."""
    ids = draw(st.lists(identifiers, min_size=1, max_size=5, unique=True))
    steps = [{"id": name, **draw(STEPS)} for name in ids]
    for place in draw(st.sets(st.integers(0, len(ids) - 1))):
        steps[place]["depends_on"] = (
            draw(st.lists(st.sampled_from(ids[:place]), unique=True)) if place else []
        )
    return pipeline(*steps, params=draw(objects), description=draw(st.text("ab \n")))


def through_jsonb(text: str) -> Any:
    """Return the JSON as PostgreSQL's jsonb stores it: keys sorted, numbers as plain decimals."""

    def plain(value: Any) -> str:
        if isinstance(value, dict):
            return "{" + ",".join(f"{json.dumps(key)}:{plain(value[key])}" for key in sorted(value)) + "}"
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
    for pair in ((10**22, 1e22), (300.0, 300), (0, -0.0), (18446744073709552000, float(2**64))):
        assert len({read(pipeline(agent("a", params={"n": number}))).digest() for number in pair}) == 1


def test_the_digest_depends_on_the_meaning_and_not_on_the_spelling() -> None:
    plain = read(pipeline(agent("a"), agent("b"))).digest()

    assert read(pipeline(agent("a"), agent("b", depends_on=["a"]))).digest() == plain
    assert read(pipeline(agent("a"), agent("b", depends_on=[]))).digest() != plain
    assert read(pipeline(agent("a"), agent("b", params={"x": 1}))).digest() != plain


STRANGE: tuple[Any, ...] = (None, True, 0, -1, 10**30, "", "x", "a\0", "\ud800", b"x")
STRANGE += ([], {}, ["a"], {"a": 1}, {1: 2})
NEW_KEYS = ("extra", "odd key", "depends_on", "human_role", 'quo"te', "")
PART_OF_PATH = re.compile(r'\[(\d+)\]|\[("(?:[^"\\]|\\.)*")\]|([A-Za-z_][A-Za-z0-9_-]*)')


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yield every key of every object and every index of every list, with its container."""
    for key in list(value if isinstance(value, dict) else range(len(value))):
        yield value, key
        if isinstance(value[key], dict | list):
            yield from places(value[key])


def follow(data: Any, path: str) -> None:
    """Follow a path; raise if it does not exist. Its last member may be missing."""
    *holders, last = PART_OF_PATH.findall(path) or [("", "", "")]
    for index, quoted, plain in holders:
        data = data[int(index)] if index else data[json.loads(quoted) if quoted else plain]
    if last[0]:
        data[int(last[0])]
    elif any(last):
        assert isinstance(data, dict), path


@settings(steady, max_examples=150)
@given(valid(), st.data())
def test_every_change_of_a_definition_is_accepted_or_refused_with_paths_that_exist(
    changed: Any, data: st.DataObject
) -> None:
    changed = deepcopy(changed)
    for _ in range(data.draw(st.integers(1, 3))):
        holder, key = data.draw(st.sampled_from([*places(changed), ({0: 0}, 0)]))
        change = data.draw(st.sampled_from(("replace", "remove", "add")))
        if change == "replace":
            holder[key] = deepcopy(data.draw(st.sampled_from(STRANGE)))
        elif change == "remove":
            del holder[key]
        elif isinstance(holder, dict):
            holder[data.draw(st.sampled_from(NEW_KEYS))] = 1
        else:
            holder.append(deepcopy(holder[key]))

    try:
        definition = read(changed)
    except DefinitionError as refused:
        refusal = refused
    else:
        assert read(definition.to_dict()) == definition
        return
    assert str(refusal).encode()
    for error in refusal.errors:
        follow(changed, error.path)
