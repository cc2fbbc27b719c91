"""How plans of a period are parsed, and how their errors are reported."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import jsonschema
import pytest

from pipelines.deliverables import plans
from pipelines.deliverables.plans import Offer, Plan, PlanInvalid, PlanItem

OFFERED = {
    "brief": Offer("brief", "Brief", params={"city": "Oslo", "words": 500, "draft": True, "topic": None}),
    "audit": Offer("audit", "Audit"),
}
ENDS_AT = datetime(2026, 6, 1, tzinfo=UTC)


def read(*items: Any, **more: Any) -> Plan:
    return plans.read({"items": list(items), **more}, offered=OFFERED, ends_at=ENDS_AT)


def errors_of(data: Any) -> dict[str, str]:
    with pytest.raises(PlanInvalid) as refusal:
        plans.read(data, offered=OFFERED, ends_at=ENDS_AT)
    assert str(refusal.value)
    return {error.path: error.message for error in refusal.value.errors}


def test_each_item_becomes_the_parameters_of_a_run() -> None:
    plan = read(
        {"pipeline": "brief", "name": "Bees", "params": {"city": "Bergen", "words": 700.5, "own": [1]},
         "input": {"content": "Bees."}, "priority": 5, "not_before": "2026-05-10T09:00:00+02:00"},
        {"pipeline": "audit"},
        notes="Spring.",
    )  # fmt: skip

    assert plan.items == (
        PlanItem(
            pipeline="brief", name="Bees", params={"city": "Bergen", "words": 700.5, "own": [1]}, input={"content": "Bees."},
            priority=5, not_before=datetime(2026, 5, 10, 7, tzinfo=UTC),
        ),
        PlanItem(pipeline="audit"),
    )  # fmt: skip
    assert plan.document["notes"] == "Spring."


@pytest.mark.parametrize(
    ("data", "path", "message"),
    [
        (None, "", "must be an object"),
        ("plan", "", "must be an object"),
        ({}, "items", "is missing"),
        ({"items": []}, "items", "must have at least 1 member"),
        ({"items": {}}, "items", "must be a list"),
        ({"items": [{"pipeline": "audit"}] * 201}, "items", "must have at most 200 members"),
        ({"items": [{"pipeline": "audit"}], "note": ""}, "note", "is not a member of this object"),
        ({"items": [{"pipeline": "audit"}], "notes": 1}, "notes", "must be text"),
        ({"items": [1]}, "items[0]", "must be an object"),
        ({"items": [{}]}, "items[0].pipeline", "is missing"),
        ({"items": [{"pipeline": "audits"}]}, "items[0].pipeline", 'unknown pipeline "audits", did you mean audit?'),
        ({"items": [{"pipeline": 7}]}, "items[0].pipeline", "must be text"),
        ({"items": [{"pipeline": "audit", "colour": 1}]}, "items[0].colour", "is not a member of this object"),
        ({"items": [{"pipeline": "audit", "a b": 1}]}, 'items[0]["a b"]', "is not a member of this object"),
        ({"items": [{"pipeline": "audit", "name": ""}]}, "items[0].name", "must not be empty"),
        ({"items": [{"pipeline": "audit", "name": "n" * 201}]}, "items[0].name", "must have at most 200 characters"),
        ({"items": [{"pipeline": "audit", "params": []}]}, "items[0].params", "must be an object"),
        ({"items": [{"pipeline": "brief", "params": {"words": "many"}}]}, "items[0].params.words", "must be a number"),
        ({"items": [{"pipeline": "brief", "params": {"draft": 1}}]}, "items[0].params.draft", "must be true or false"),
        ({"items": [{"pipeline": "brief", "params": {"city": None}}]}, "items[0].params.city", "must be text"),
        ({"items": [{"pipeline": "audit", "input": {}}]}, "items[0].input", "must have at least 1 member"),
        ({"items": [{"pipeline": "audit", "input": {"text": "a"}}]}, "items[0].input.text", "is not a member of this object"),
        ({"items": [{"pipeline": "audit", "input": {"content": 1}}]}, "items[0].input.content", "must be text"),
        ({"items": [{"pipeline": "audit", "priority": 21}]}, "items[0].priority", "must be from 1 to 20"),
        ({"items": [{"pipeline": "audit", "priority": 0}]}, "items[0].priority", "must be from 1 to 20"),
        ({"items": [{"pipeline": "audit", "priority": True}]}, "items[0].priority", "must be a whole number"),
        ({"items": [{"pipeline": "audit", "not_before": "soon"}]}, "items[0].not_before",
         "must be a time with its offset, such as 2026-05-01T09:30:00Z"),
        ({"items": [{"pipeline": "audit", "not_before": "2026-05-10T09:00:00"}]}, "items[0].not_before",
         "must be a time with its offset, such as 2026-05-01T09:30:00Z"),
        ({"items": [{"pipeline": "audit", "not_before": "2026-06-01T00:00:00Z"}]}, "items[0].not_before",
         "must be before 2026-06-01T00:00:00Z, when the period ends"),
    ],
)  # fmt: skip
def test_an_error_names_its_path_in_the_plan(data: Any, path: str, message: str) -> None:
    assert errors_of(data) == {path: message}


def test_all_errors_of_a_plan_are_reported_at_once() -> None:
    data = {
        "items": [
            {"pipeline": "none"},
            {"pipeline": "brief", "params": {"city": 1, "words": "x"}, "not_before": "now"},
        ]
    }

    assert list(errors_of(data)) == [
        "items[0].pipeline", "items[1].params.city", "items[1].params.words", "items[1].not_before",
    ]  # fmt: skip


def test_an_item_of_the_wrong_form_does_not_hide_the_errors_of_others() -> None:
    data = {
        "note": 1,
        "items": [{"pipeline": "none"}, 5, {"pipeline": "audit", "colour": 1}, {"pipeline": "audits"}],
    }

    assert list(errors_of(data)) == [
        "note", "items[1]", "items[2].colour", "items[0].pipeline", "items[3].pipeline",
    ]  # fmt: skip


def test_a_member_of_the_wrong_form_does_not_hide_the_errors_of_the_other_members() -> None:
    data = {
        "items": [
            {"name": 5, "pipeline": "none", "not_before": "now"},
            {"colour": 1, "pipeline": "brief", "params": {"city": 1}},
            {"pipeline": 5, "params": [], "not_before": "now"},
        ]
    }

    assert set(errors_of(data)) == {
        "items[0].name", "items[0].pipeline", "items[0].not_before", "items[1].colour", "items[1].params.city",
        "items[2].pipeline", "items[2].params", "items[2].not_before",
    }  # fmt: skip


@pytest.mark.parametrize("members", [{"pipeline": "none"}, {}])
def test_a_plan_reports_its_first_fifty_errors(members: dict[str, str]) -> None:
    assert len(errors_of({"items": [members] * 120})) == 50


def test_a_period_includes_its_last_moment() -> None:
    plan = read({"pipeline": "audit", "not_before": "2026-05-31T23:59:59.999999Z"})

    assert plan.items[0].not_before is not None


def test_the_type_of_a_parameter_follows_from_its_default() -> None:
    schema = plans.schema_of({"text": "a", "number": 1, "flag": False, "list": [], "object": {}, "any": None})

    assert {name: kind.get("type") for name, kind in schema["properties"].items()} == {
        "text": "string", "number": "number", "flag": "boolean", "list": "array", "object": "object", "any": None,
    }  # fmt: skip
    assert schema["properties"]["number"]["default"] == 1


def test_the_schema_for_planners_is_a_valid_json_schema() -> None:
    jsonschema.Draft202012Validator.check_schema(plans.SCHEMA)
