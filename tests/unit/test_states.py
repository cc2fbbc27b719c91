"""Invariants of the state table that hold for any verb that is added."""

from __future__ import annotations

import re
from collections.abc import Iterable

import pytest
from django.conf import settings
from django.db.models import CheckConstraint, Q, UniqueConstraint

from activities import states
from activities.management.commands import draw_lifecycle
from activities.models import Activity, ActivityRun, Wake
from activities.states import (
    FINAL,
    INDEXED,
    LIVE,
    OPEN,
    RUNNING,
    SETTLED,
    TRANSITIONS,
    WAITING,
    LinkKind,
    RunStatus,
    Status,
    WakeReason,
    WakeState,
)
from pipelines.diagram import GLYPHS, TONES

ALL = frozenset(status.value for status in Status)


def _reached(start: Iterable[str], *, without: str | None = None) -> set[str]:
    """Return every status that some chain of verbs leads to from `start`."""
    reached, to_visit = set(start), list(start)
    while to_visit:
        here = to_visit.pop()
        for verb, step in TRANSITIONS.items():
            if verb != without and here in step.sources and step.target not in reached:
                reached.add(step.target.value)
                to_visit.append(step.target.value)
    return reached


def _constraint(name: str) -> CheckConstraint | UniqueConstraint:
    return next(constraint for constraint in Activity._meta.constraints if constraint.name == name)


def _statuses_in(condition: Q, name: str = "status") -> set[str]:
    """Return the statuses of all conditions on `status__in`, nested ones included."""
    statuses: set[str] = set()
    for child in condition.children:
        if isinstance(child, Q):
            statuses |= _statuses_in(child, name)
        elif child[0] == f"{name}__in":
            statuses |= {str(status) for status in child[1]}
    return statuses


@pytest.mark.parametrize("status", Status)
def test_every_status_is_reached_from_created(status: Status) -> None:
    assert status in _reached([Status.CREATED])


@pytest.mark.parametrize("status", [status for status in Status if status not in FINAL])
def test_every_status_that_is_not_final_can_still_end(status: Status) -> None:
    assert _reached([status]) & FINAL


@pytest.mark.parametrize("status", [status for status in Status if status not in FINAL])
def test_an_operator_can_cancel_every_status_that_has_not_ended(status: Status) -> None:
    assert "cancel" in states.verbs_from(status)


@pytest.mark.parametrize("status", sorted(WAITING))
def test_every_waiting_status_has_a_way_on_besides_cancel(status: str) -> None:
    assert set(states.verbs_from(status)) - {"cancel", "reassign"}


@pytest.mark.parametrize("status", sorted(RUNNING))
def test_recovery_can_always_requeue_or_fail_a_running_activity(status: str) -> None:
    assert {"release", "fail"} <= set(states.verbs_from(status))


@pytest.mark.parametrize("verb", TRANSITIONS)
def test_a_verb_always_changes_the_status(verb: str) -> None:
    assert TRANSITIONS[verb].target not in TRANSITIONS[verb].sources
    assert TRANSITIONS[verb].sources


@pytest.mark.parametrize("verb", TRANSITIONS)
def test_no_verb_leaves_a_final_status(verb: str) -> None:
    assert not TRANSITIONS[verb].sources & FINAL


def test_work_begins_again_only_from_where_it_can_be_claimed() -> None:
    """A worker starts an agent only from `assigned`, and only a claim leads there."""
    assert states.sources_of("start") == [Status.ASSIGNED]
    assert [verb for verb, step in TRANSITIONS.items() if step.target == Status.ASSIGNED] == ["claim"]
    assert states.sources_of("claim") == [Status.CREATED]


def test_the_fourteen_statuses_are_those_of_the_public_api() -> None:
    known = "created assigned in_progress awaiting_approval awaiting_subtask awaiting_review blocked done approved rejected reassigned"

    assert set(known.split()) | {"failed", "needs_review", "cancelled"} == ALL


def test_derived_sets_follow_from_the_table() -> None:
    assert {status for status in ALL if not states.verbs_from(status)} == FINAL
    assert {"failed", "needs_review"} == SETTLED - FINAL
    assert LIVE == ALL - SETTLED
    assert {"created"} == LIVE - RUNNING - WAITING
    assert not RUNNING & WAITING


def test_the_pairs_are_exactly_the_transitions() -> None:
    expected = {(str(source), str(step.target)) for step in TRANSITIONS.values() for source in step.sources}

    assert states.pairs() == expected
    assert all(source in ALL and target in ALL for source, target in states.pairs())


def test_all_lookups_in_the_state_table_agree() -> None:
    for verb in TRANSITIONS:
        assert states.target_of(verb) == TRANSITIONS[verb].target
        assert set(states.sources_of(verb)) == {status for status in ALL if verb in states.verbs_from(status)}


def test_the_constraints_of_the_database_agree_with_the_table() -> None:
    assert _statuses_in(_constraint("activity_status_known").condition) == ALL
    assert _statuses_in(_constraint("activity_settled_has_end").condition) == SETTLED
    live = _statuses_in(_constraint("activity_once_while_live").condition, "indexed_status")
    assert {status for status in ALL if INDEXED[status] in live} == LIVE


def test_claim_start_and_requeue_change_no_indexed_column() -> None:
    moves = [TRANSITIONS[verb] for verb in ("claim", "start", "release")]

    assert {INDEXED[status] for step in moves for status in (*step.sources, step.target)} == {OPEN}
    assert all(INDEXED[status] in (status, OPEN) for status in ALL)


def test_columns_have_room_for_every_value() -> None:
    assert max(map(len, Status)) <= Activity._meta.get_field("status").max_length
    assert max(map(len, LinkKind)) <= Activity._meta.get_field("link_kind").max_length
    assert max(map(len, RunStatus)) <= ActivityRun._meta.get_field("status").max_length
    assert max(map(len, WakeReason)) <= Wake._meta.get_field("reason").max_length
    assert max(map(len, WakeState)) <= Wake._meta.get_field("state").max_length
    assert max(map(len, TRANSITIONS)) <= 24  # ActivityEvent.verb


def test_priorities_of_the_bands_are_on_the_scale_and_in_order() -> None:
    assert list(states.BANDS.values()) == sorted(states.BANDS.values())
    assert all(1 <= priority <= 20 for priority in states.BANDS.values())


def test_the_picture_shows_every_status_and_verb_that_it_does_not_list_as_left_out() -> None:
    picture, words = draw_lifecycle.picture(), draw_lifecycle.not_drawn()

    for status in Status:
        assert re.search(rf"\b{status}\b", picture)
    for verb in TRANSITIONS:
        assert re.search(rf"\b{verb}\b", picture) or f"`{verb}`" in words


def test_the_picture_has_an_arrow_for_every_pair_that_it_does_not_leave_out() -> None:
    arrows = set(re.findall(r"^    (\w+) --> (\w+): ", draw_lifecycle.picture(), re.MULTILINE))
    left_out = {verb for verb in TRANSITIONS if f"`{verb}`" in draw_lifecycle.not_drawn()}

    drawn = {
        (str(s), str(step.target))
        for verb, step in TRANSITIONS.items()
        if verb not in left_out
        for s in step.sources
    }

    assert arrows == drawn


def test_every_status_documents_how_it_is_left() -> None:
    rows = [line for line in draw_lifecycle.statuses().splitlines() if line.startswith("| `")]

    assert len(rows) == len(Status)
    assert all(len(row.split("|")[3].strip()) > 4 for row in rows)


def test_an_unknown_section_is_refused() -> None:
    with pytest.raises(KeyError):
        draw_lifecycle.renew_sections("<!-- generated: weather -->\nold\n<!-- end of weather -->")


def test_renewing_changes_only_the_text_between_the_markers_and_is_idempotent() -> None:
    document = "before\n<!-- generated: verbs -->\nyesterday\n<!-- end of verbs -->\nafter"

    renewed = draw_lifecycle.renew_sections(document)

    assert renewed.startswith("before\n")
    assert renewed.endswith("\nafter")
    assert "yesterday" not in renewed
    assert draw_lifecycle.renew_sections(renewed) == renewed


def test_every_status_has_a_text_for_people() -> None:
    assert set(states.STATUSES) == set(map(str, Status))
    assert {spec.glyph for spec in states.STATUSES.values()} <= set(GLYPHS)
    assert {spec.tone for spec in states.STATUSES.values()} <= set(TONES)


def test_every_wake_reason_has_a_prompt_section_and_every_wait_but_approval_has_a_reason() -> None:
    folder = settings.BASE_DIR / "templates" / "prompts"

    assert [reason for reason in WakeReason if not (folder / f"{reason}.md").exists()] == []
    assert {reason.ends for reason in WakeReason} - {None} == states.WAITING - {Status.AWAITING_APPROVAL}


def _words_in(path: str, pattern: str) -> set[str]:
    match = re.search(pattern, (settings.BASE_DIR / path).read_text(encoding="utf-8"), re.DOTALL)
    assert match is not None, path
    return set(re.findall(r"[\"'](\w+)[\"']", match[1]))


@pytest.mark.parametrize(
    ("path", "pattern", "known"),
    [
        pytest.param("orchestrator/mcp/people_tools.py", r"\nSTATUSES = \((.*?)\)", ALL, id="tool of people"),
        pytest.param("documentation/state_picture.py", r"\nPLACES.*?\{(.*?)\n\}", ALL, id="picture"),
        pytest.param(
            "clients/python/src/orchestrator_client/client.py",
            r"\nSETTLED = .*?\{(.*?)\}",
            SETTLED,
            id="client",
        ),
        pytest.param(
            "tenants/events/sql/number.sql",
            r"e\.target IN \(([^)]*)\) THEN 'activity\.waiting'",
            WAITING,
            id="events",
        ),
        pytest.param(
            "activities/sql/invariants/i09.sql",
            r"FROM activities_activity WHERE status IN \(([^)]*)\)\n\) a FULL JOIN",
            WAITING,
            id="invariant",
        ),
    ],
)
def test_modules_that_cannot_import_the_table_list_the_same_statuses(
    path: str, pattern: str, known: frozenset[str]
) -> None:
    assert _words_in(path, pattern) == known
