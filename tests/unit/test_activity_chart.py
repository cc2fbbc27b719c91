"""How the time of an activity is divided into stretches, and the chart of them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from activities.selectors import Moment
from console.activities.chart import draw_chart, segments

BEGIN = datetime(2026, 5, 1, 12, tzinfo=UTC)


def transition(seconds: float, verb: str, target: str, actor: str = "worker", **detail: Any) -> Moment:
    facts = {"verb": verb, "source": None, "target": target, "actor": actor, "run": None, "detail": detail}
    return Moment(BEGIN + timedelta(seconds=seconds), f"1:{seconds}", "transition", facts)


STORY = [
    transition(0, "submit", "created", "user:ann"),
    transition(2, "claim", "assigned"),
    transition(3, "start", "in_progress"),
    transition(10, "block", "blocked", "run:1", message="No login."),
    transition(70, "wake", "created", "user:bob", note="Signed in."),
    transition(71, "claim", "assigned"),
    transition(72, "complete", "done"),
]


def test_time_of_waiting_of_agents_and_of_people_is_separate_and_has_its_reason() -> None:
    stretches = segments(STORY, by_person=False, now=BEGIN + timedelta(hours=1))

    assert [(each.lane, each.duration.total_seconds(), each.why) for each in stretches] == [
        ("waits", 2, "ann submitted"),
        ("agent", 8, "a worker claimed"),
        ("people", 60, "its agent reported a blocker: No login."),
        ("waits", 1, "bob woke: Signed in."),
        ("agent", 1, "a worker claimed"),
    ]
    assert not any(each.goes_on for each in stretches)


def test_the_open_stretch_lasts_until_now_with_the_current_reason() -> None:
    (only,) = segments(
        STORY[:1], by_person=False, now=BEGIN + timedelta(seconds=30), reason_now="Paused by ann."
    )

    assert (only.goes_on, only.duration, only.why) == (True, timedelta(seconds=30), "Paused by ann.")


def test_human_work_belongs_to_people_from_its_creation() -> None:
    story = [
        transition(0, "submit", "created"),
        transition(5, "take_up", "in_progress", "user:ann"),
        transition(9, "finish", "done"),
    ]

    stretches = segments(story, by_person=True, now=BEGIN)

    assert [(each.lane, each.words) for each in stretches] == [
        ("people", "Waits for a person"),
        ("people", "A person works"),
    ]


def test_the_chart_has_a_bar_for_each_stretch_and_escapes_texts_of_agents() -> None:
    story = [*STORY[:3], transition(10, "block", "blocked", "run:1", message='<script>"x"</script>')]
    stretches = segments(story, by_person=False, now=BEGIN + timedelta(seconds=12))

    picture = draw_chart(stretches, [(BEGIN, "<b>woken</b>")])

    assert picture.count('class="stretch"') == 3
    assert "<script>" not in picture
    assert "<b>" not in picture
    assert "style=" not in picture


def test_very_short_and_very_long_stretches_are_drawn() -> None:
    story = [transition(0, "submit", "created"), transition(0.000001, "claim", "assigned")]

    for hours in (0, 1, 24 * 400):
        picture = draw_chart(segments(story, by_person=False, now=BEGIN + timedelta(hours=hours)))
        assert picture.count('class="stretch"') == 2
        assert 2 <= picture.count("<text") <= 3 + 9


def test_an_activity_without_a_history_has_no_picture() -> None:
    assert draw_chart([]) == ""
