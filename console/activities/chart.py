"""Draws the time breakdown of an activity as SVG: three lanes on one time axis, without scripts or styles of its own."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import count

from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from activities.selectors import Moment
from activities.states import SETTLED, STATUSES, Status
from console.labels import in_words, name_actor, past_tense, text_of_event

LANES = (("waits", "Waiting"), ("agent", "Agent"), ("people", "People"))
LEFT, RIGHT, TOP = 78, 12, 8
WIDTH, LANE, BAR = 900, 34, 20
LEAST = 3  # the width of a bar that would be too narrow to see
_STEPS = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1_800, 3_600, 7_200, 14_400, 43_200, 86_400)  # seconds
MOST_TICKS = 7


ROW_LEFT = 190  # of the chart of a run, whose rows have names
LONGEST_NAME = 26  # characters


@dataclass(frozen=True, slots=True)
class ChartRow:
    """One row: its name, the address that it links to, if any, and its segments."""

    name: str
    href: str
    segments: Sequence[Segment]


def draw_chart(timeline: Sequence[Segment], marks: Sequence[tuple[datetime, str]] = ()) -> SafeString:
    """Return the SVG, empty without segments. `marks` are times with labels: wakes and tool calls."""
    if not timeline:
        return SafeString("")
    rows = [ChartRow(words, "", [each for each in timeline if each.lane == lane]) for lane, words in LANES]
    return _draw(rows, timeline[0].begins, 'role="img" aria-label="Time breakdown"', LEFT, marks=marks)


def draw_rows_chart(rows: Sequence[ChartRow], begins: datetime) -> SafeString:
    """Return the SVG with a row for each step of a run that has segments; empty if none has."""
    started = [row for row in rows if row.segments]
    label = 'role="group" aria-label="Time breakdown by step"'
    return _draw(started, begins, label, ROW_LEFT, by_lane=True) if started else SafeString("")


def _draw(
    rows: Sequence[ChartRow],
    begins: datetime,
    label: str,
    left: int,
    *,
    marks: Sequence[tuple[datetime, str]] = (),
    by_lane: bool = False,
) -> SafeString:
    """Return the SVG. `by_lane` colours bars by their lane, in a chart whose rows are not lanes, instead of by their tone."""
    ends = max(each.ends for row in rows for each in row.segments)
    length = max((ends - begins).total_seconds(), 0.001)
    height = TOP + LANE * len(rows) + 26

    def x(moment: datetime) -> float:
        share = (moment - begins).total_seconds() / length
        return round(left + (WIDTH - left - RIGHT) * min(max(share, 0), 1), 1)

    def bar(segment: Segment, top: int) -> SafeString:
        words = f"{segment.words}, {in_words(segment.duration.total_seconds())}"
        return format_html(
            '<g class="{}{}"><rect class="stretch" x="{}" y="{}" width="{}" height="{}" rx="4"><title>{}</title></rect></g>',
            f"of-{segment.lane}" if by_lane else segment.tone,
            " goes-on" if segment.goes_on else "",
            x(segment.begins),
            top + (LANE - BAR) / 2,
            max(round(x(segment.ends) - x(segment.begins), 1), LEAST),
            BAR,
            f"{words}. {segment.why}" if segment.why else words,
        )

    drawn = (
        (_row_name(row, left, top), format_html_join("", "{}", ((bar(each, top),) for each in row.segments)))
        for top, row in zip(count(TOP, LANE), rows, strict=False)
    )
    mark = '<circle class="mark" cx="{}" cy="{}" r="3.5"><title>{}</title></circle>'
    return format_html(
        '<svg class="gantt" viewBox="0 0 {} {}" {}>{}{}{}</svg>',
        WIDTH,
        height,
        SafeString(label),
        _clock(begins, length, height, left),
        format_html_join("", "<g>{}{}</g>", drawn),
        format_html_join("", mark, ((x(at), TOP + LANE * len(rows) + 3, words) for at, words in marks)),
    )


def _row_name(row: ChartRow, left: int, top: int) -> SafeString:
    short = row.name if len(row.name) <= LONGEST_NAME else f"{row.name[: LONGEST_NAME - 1]}…"
    y = top + LANE / 2 + 4
    text = format_html(
        '<text class="lane" x="{}" y="{}">{}<title>{}</title></text>', left - 10, y, short, row.name
    )
    return format_html('<a href="{}">{}</a>', row.href, text) if row.href else text


def _clock(begins: datetime, length: float, height: int, left: int) -> SafeString:
    """Return the time axis, with ticks at round times since the beginning."""
    step = next((each for each in _STEPS if length / each <= MOST_TICKS), length / MOST_TICKS)
    rows = []
    for number in range(int(length / step) + 1):
        passed = step * number
        x = round(left + (WIDTH - left - RIGHT) * passed / length, 1)
        at = begins + timedelta(seconds=passed)
        rows.append((x, TOP, x, height - 18, x, height - 4, _label(passed, at, step)))
    line = '<line class="tick" x1="{}" y1="{}" x2="{}" y2="{}"/><text class="hour" x="{}" y="{}">{}</text>'
    return format_html_join("", line, rows)


def _label(passed: float, at: datetime, step: float) -> str:
    moment = at.astimezone(UTC)
    if not passed:
        return f"{moment:%H:%M:%S}" if step < 3_600 else f"{moment:%-d %b %H:%M}"
    return f"+{in_words(passed)}"


# The time breakdown: segments of waiting, of agents at work and of people, each with its reason.
#
# Computed from the history alone, so it agrees with the timeline of the API.


#: Lane, tone and label by status, for activities of people.
_OF_PEOPLE: dict[str, tuple[str, str, str]] = {
    Status.CREATED: ("people", "ask", "Waits for a person"),
    Status.IN_PROGRESS: ("people", "live", "A person works"),
}
_REASONS = ("reason", "message", "notes", "note", "question", "code")
LONGEST_REASON = 300


@dataclass(frozen=True, slots=True)
class Segment:
    """A period that an activity spent in one lane. The last one of an open activity ends now."""

    lane: str
    tone: str
    begins: datetime
    ends: datetime
    words: str
    why: str
    goes_on: bool = False

    @property
    def duration(self) -> timedelta:
        return self.ends - self.begins


def segments(
    moments: Iterable[Moment], *, by_person: bool, now: datetime, reason_now: str = ""
) -> list[Segment]:
    """Return the segments in order, with adjacent ones of an agent joined."""
    steps = [moment for moment in moments if moment.kind == "transition"]
    timeline: list[Segment] = []
    for step, following in zip(steps, [*steps[1:], None], strict=True):
        status = step.facts["target"]
        if status in SETTLED and (following is None or status not in (Status.FAILED, Status.NEEDS_REVIEW)):
            continue
        lane = _lane(status, by_person=by_person)
        why = reason_now if following is None and reason_now else _why(step)
        ends = following.at if following else max(now, step.at)
        segment = Segment(*lane[:2], step.at, ends, lane[2], why, following is None)
        timeline = _join_segments(timeline, segment)
    return timeline


def _lane(status: str, *, by_person: bool) -> tuple[str, str, str]:
    if by_person and status in _OF_PEOPLE:
        return _OF_PEOPLE[status]
    spec = STATUSES[status]
    return spec.lane, spec.tone, spec.stretch


def _join_segments(timeline: list[Segment], segment: Segment) -> list[Segment]:
    """Append a segment. An agent's start and its work become one segment."""
    last = timeline[-1] if timeline else None
    if last is None or (last.lane, last.tone) != (segment.lane, segment.tone) or segment.lane != "agent":
        return [*timeline, segment]
    return [*timeline[:-1], replace(segment, begins=last.begins, why=last.why or segment.why)]


def _why(step: Moment) -> str:
    text = text_of_event(step.facts["detail"], _REASONS)
    by = f"{name_actor(step.facts['actor'])} {past_tense(step.facts['verb'])}"
    return f"{by}: {text}"[:LONGEST_REASON] if text else by
