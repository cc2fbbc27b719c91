"""What expressions evaluate to, and which errors are found before they run."""

from __future__ import annotations

from typing import Any

import pytest

from pipelines.definition import parse as parse_definition
from pipelines.expressions import ExpressionError, check, condition, evaluate, items
from tests.unit.expressions.names import NAMES, refusal


def value(text: str) -> Any:
    return evaluate(text, NAMES)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("null", None),
        ("true", True),
        ("12", 12),
        ("1.50", 1.5),
        ("2e3", 2000),
        ("'it\\'s'", "it's"),
        ('"a\\\\b\\n\\t\\""', 'a\\b\n\t"'),
        ("[1, 'a', [true]]", [1, "a", [True]]),
        ("[]", []),
        ("params.market", "se"),
        ("params['first-name']", "Ann"),
        ("steps.research.data.score", 7),
        ("steps.sign-off.data.ok", False),
        ("steps.research.data.sections[0].title", "One"),
        ("steps.research.data.sections[-1]['title']", "Two"),
        ("steps.research.content", "A draft of the text"),
        ("steps.optional.status", "skipped"),
        ("item.rank", 2),
        ("params.scores[params.scores[1]]", 1),
    ],
)
def test_literals_and_names_have_their_values(text: str, expected: Any) -> None:
    assert (value(text), type(value(text))) == (expected, type(expected))


@pytest.mark.parametrize(
    "text",
    ["params.missing", "params.missing.deeper[0]", "params.tags[2]", "params.tags[-3]", "steps.optional.data.score",
     "steps.never-ran.data.x", "steps.optional.content", "params.nothing.x", "params['__class__']"],
)  # fmt: skip
def test_missing_values_are_null(text: str) -> None:
    assert value(text) is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1 + 2 * 3 - 4", 3),
        ("(1 + 2) * 3", 9),
        ("10 - 4 - 3", 3),
        ("6 / 3", 2),
        ("7 / 2", 3.5),
        ("-7 % 3", 2),
        ("--2", 2),
        ("-params.threshold * 2", -10),
        ("'a' + 'b'", "ab"),
        ("params.tags + ['c']", ["a", "b", "c"]),
        ("1 == 1.0", True),
        ("true == 1", False),
        ("[1, [true]] == [1, [1]]", False),
        ("params.scores == [3, 1, 2.0]", True),
        ("params.scores == [3, 1]", False),
        ("item == item", True),
        ("item != steps.research.data", True),
        ("null == params.missing", True),
        ("null != 0", True),
        ("'b' > 'a'", True),
        ("2 >= 2", True),
        ("'a' in params.tags", True),
        ("'c' not  in params.tags", True),
        ("not 'c' in params.tags", True),
        ("'market' in params", True),
        ("'draft' in steps.research.content", True),
        ("true or 1", True),
        ("false and 1", False),
        ("false or false or true", True),
        ("true and not false", True),
        ("not not true", True),
        ("false and false or true", True),
        ("1 < 2 and 2 < 3", True),
        ("steps.research.data.score >= params.threshold and not contains(steps.research.content, \"final\")", True),
    ],
)  # fmt: skip
def test_operators_have_their_meaning_and_precedence(text: str, expected: Any) -> None:
    assert value(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("len('abc')", 3), ("len(params.tags)", 2), ("len(item)", 2),
        ("lower('ÅB')", "åb"), ("upper('ab')", "AB"),
        ("contains(params.tags, 'a')", True), ("contains('abc', 'd')", False), ("contains(item, 'rank')", True),
        ("startswith('abc', 'ab')", True), ("endswith('abc', 'ab')", False),
        ("min(params.scores)", 1), ("max(params.scores)", 3), ("max(1, 2.5)", 2.5), ("min('b', 'a')", "a"), ("min([])", None),
        ("sum(params.scores)", 6), ("sum([])", 0), ("sum([0.5, 0.5])", 1),
        ("any([false, true])", True), ("any([])", False), ("all([])", True), ("all([true, false])", False),
        ("default(params.missing, 4)", 4), ("default(params.threshold, 4)", 5), ("default(null, null)", None),
        ("int('12')", 12), ("int(3.9)", 3), ("int(-3.9)", -3), ("int('-7')", -7),
        ("number('2.5')", 2.5), ("number('2')", 2), ("number(3)", 3),
        ("string(12)", "12"), ("string(0.5)", "0.5"), ("string(true)", "true"), ("string('a')", "a"),
    ],
)  # fmt: skip
def test_functions_return_the_documented_values(text: str, expected: Any) -> None:
    assert (value(text), type(value(text))) == (expected, type(expected))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1 + 'a'", "+ needs two numbers, two texts or two lists, not a number and text"),
        ("true + 1", "+ needs"),
        ("'a' * 9", "* needs two numbers, not text and a number"),
        ("'%s' % 1", "% needs two numbers"),
        ("1 < 'a'", "< needs two numbers or two texts"),
        ("null < 1", "< needs two numbers or two texts, not null and a number"),
        ("true < false", "< needs"),
        ("[1] < [2]", "< needs"),
        ("1 and true", "and needs true or false, not a number"),
        ("params.missing or true", "or needs true or false, not null"),
        ("not 'x'", "not needs true or false, not text"),
        ("-'a'", "- needs a number"),
        ("1 / 0", "cannot be divided by zero"),
        ("1 % 0", "cannot be divided by zero"),
        ("1e300 * 1e300", "too large a number"),
        ("999999999999999999 * 999999999999999999 * 999999999999999999", "too large a number"),
        ("params.market.x", "text has no member that is named by text"),
        ("params.tags['a']", "a list has no member that is named by text"),
        ("params.tags[0.5]", "a list has no member that is named by a number"),
        ("params.tags[true]", "a list has no member that is named by true or false"),
        ("params[0]", "an object has no member that is named by a number"),
        ("1 in 2", "a number cannot be searched for a number"),
        ("1 in 'a1'", "text cannot be searched for a number"),
        ("len(5)", "is needed, not a number"),
        ("lower(null)", "text is needed, not null"),
        ("min(params.mixed)", "two numbers or two texts"),
        ("min([null])", "two numbers or two texts"),
        ("sum(params.mixed)", "the list must hold numbers, not text"),
        ("any(params.scores)", "a list of true and false is needed"),
        ("int('1_000')", '"1_000" is not a whole number'),
        ("int('٣')", "is not a whole number"),
        ("number('nan')", '"nan" is not a number'),
        ("number('1e999')", "is not a number"),
        ("number(true)", "true or false is not a number"),
        ("string(null)", "not null"),
        ("string(params)", "not an object"),
    ],
)  # fmt: skip
def test_nothing_is_converted_silently(text: str, message: str) -> None:
    assert message in refusal(text)


@pytest.mark.parametrize(
    ("text", "at", "message"),
    [
        ("", 1, "the expression is empty"),
        ("  \n ", 1, "the expression is empty"),
        ("1 +", 4, "ends too early"),
        ("(1", 3, "ends too early"),
        ("1)", 2, 'did not expect ")" here'),
        ("1 2", 3, 'did not expect "2" here'),
        ("1 < 2 < 3", 7, 'did not expect "<" here'),
        ("a = b", 3, '"=" has no meaning here'),
        ("'abc", 1, "this text has no closing quote"),
        ("'a\\x41'", 1, "an invalid escape"),
        ("1 + not true", 5, "did not expect"),
        ("and(1)", 1, "did not expect"),
        ("1 index", 3, "did not expect"),
        ("true orx", 6, "did not expect"),
        ("(" * 32 + "1" + ")" * 32, 33, "nested deeper than 32 levels"),
        ("research.data", 1, 'unknown name "research": use params, steps.<id> or item; text needs quotes'),
        ("steps", 1, "steps needs the id of a step"),
        ("steps.a", 8, "ends too early"),
        ("steps.a.output", 1, 'a step has data, content, status, but no "output"'),
        ("1e999", 1, "this number is too large"),
        ("007", 1, "has no meaning here"),
        ("1.", 1, "has no meaning here"),
        ("0x10", 1, "has no meaning here"),
        ("\x00", 1, "holds a NUL character"),
        ("'" + "a" * 2_000, 2_001, "must have at most 2,000 characters"),
        ("true or foo(1)", 1, 'unknown function "foo"'),
        ("lenn('a')", 1, 'unknown function "lenn", did you mean len?'),
        ("len()", 1, "len takes 1 argument"),
        ("default(1)", 1, "default takes 2 arguments"),
        ("[1, max()]", 5, "max takes 1 to 20 arguments"),
    ],
)
def test_a_syntax_error_names_its_character(text: str, at: int, message: str) -> None:
    error = check(text) or ""

    assert message in error
    assert error.startswith("character ")
    if "foo" not in text:
        assert error.startswith(f"character {at}: ")


@pytest.mark.parametrize(
    ("text", "kind", "error"),
    [
        ("1 < 2", "condition", None),
        ("params.flag", "condition", None),
        ("default(params.flag, false)", "condition", None),
        ("1 + 1", "condition", "character 1: a condition must be true or false, but this is a number"),
        ("'yes'", "condition", "character 1: a condition must be true or false, but this is text"),
        ("[true]", "condition", "character 1: a condition must be true or false, but this is a list"),
        ("null", "condition", "character 1: a condition must be true or false, but this is null"),
        (
            "len(params.tags)",
            "condition",
            "character 1: a condition must be true or false, but this is a number",
        ),
        ("steps.research.data.sections", "list", None),
        ("[1, 2]", "list", None),
        ("params.tags + ['c']", "list", None),
        ("not true", "list", "character 1: a fan-out needs a list, but this is true or false"),
        ("-1", "list", "character 1: a fan-out needs a list, but this is a number"),
        ("1 == 1", "list", "character 3: a fan-out needs a list, but this is true or false"),
    ],
)
def test_an_expression_that_can_never_have_the_right_type_is_refused_before_it_runs(
    text: str, kind: Any, error: Any
) -> None:
    assert check(text, kind=kind) == error


def test_unknown_and_later_steps_are_refused_by_name() -> None:
    world: dict[str, Any] = {"steps": ["research", "brief", "publish"], "upstream": ["research"]}

    assert check("steps.research.data.ok", **world) is None
    assert (
        check("true or steps.reserch.data.ok", **world)
        == 'character 9: unknown step "reserch", did you mean research?'
    )
    assert check("[steps.publish.data.ok]", **world) == (
        "character 2: the step publish does not come before this one: add it to depends_on"
    )
    assert check("steps.anything.data.ok") is None


def test_an_item_exists_only_in_a_fan_out() -> None:
    assert check("item.rank > 1", item=True) is None
    assert "there is no item here" in (check("1 < item.rank", item=False) or "")
    with pytest.raises(ExpressionError, match="there is no item"):
        evaluate("item.rank", {"params": {}, "steps": {}})


def test_definitions_of_pipelines_check_their_expressions() -> None:
    def definition(when: str) -> Any:
        step = {"id": "a", "agent_role": "writer", "when": when}
        return parse_definition(
            {"key": "k", "name": "n", "steps": [step]},
            known_roles=["writer"],
            known_templates=[],
            check_expression=check,
        )

    assert definition("params.go == true").steps[0].when == "params.go == true"
    with pytest.raises(Exception, match=r"steps\[0\].when: character 11: the expression ends too early"):
        definition("params.a +")


def test_a_condition_is_true_or_false_and_a_fan_out_is_a_list() -> None:
    assert condition("steps.research.data.ready", NAMES) is True
    assert items("steps.research.data.sections", NAMES) == [{"title": "One"}, {"title": "Two"}]
    with pytest.raises(ExpressionError, match="a condition must be true or false, but this is null"):
        condition("steps.research.data.redy", NAMES)
    with pytest.raises(ExpressionError, match="a fan-out needs a list, but this is text"):
        items("params.market", NAMES)
    with pytest.raises(ExpressionError, match="at most 2 members, but this list has 3"):
        items("params.scores", NAMES, most=2)


def test_and_and_or_skip_operands_that_cannot_change_the_result() -> None:
    assert value("params.missing != null and params.missing > 3") is False
    assert value("params.missing == null or params.missing > 3") is True
