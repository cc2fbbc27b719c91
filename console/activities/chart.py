"""Draws the time breakdown of an activity as SVG: three lanes on one time axis, without scripts or styles of its own."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

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


def draw_chart(timeline: Sequence[Segment], marks: Sequence[tuple[datetime, str]] = ()) -> SafeString:
    """Return the SVG, empty without segments. `marks` are times with labels: wakes and tool calls."""
    if not timeline:
        return SafeString("")
    begins = timeline[0].begins
    length = _length(timeline, begins)
    height = TOP + LANE * len(LANES) + 26

    def x(moment: datetime) -> float:
        return _x(moment, begins, length, LEFT)

    rows = ((LEFT - 10, _top(lane) + BAR / 2 + 4, words) for lane, words in LANES)
    return format_html(
        '<svg class="gantt" viewBox="0 0 {} {}" role="img" aria-label="Time breakdown">{}{}{}{}</svg>',
        WIDTH,
        height,
        format_html_join("", '<text class="lane" x="{}" y="{}">{}</text>', rows),
        _clock(begins, length, height),
        format_html_join(
            "", "{}", ((_bar(each, x(each.begins), x(each.ends), _top(each.lane)),) for each in timeline)
        ),
        format_html_join("", "{}", ((_mark(x(at), words),) for at, words in marks)),
    )


ROW_LEFT = 190  # of the chart of a run, whose rows have names
LONGEST_NAME = 26  # characters


@dataclass(frozen=True, slots=True)
class ChartRow:
    """One step of a run: its name, the address of its activity if it has one, and its segments."""

    name: str
    href: str
    segments: Sequence[Segment]


def draw_rows_chart(rows: Sequence[ChartRow], begins: datetime) -> SafeString:
    """Return the SVG with a lane for each row that has segments; empty if none has."""
    started = [row for row in rows if row.segments]
    if not started:
        return SafeString("")
    length = _length([each for row in started for each in row.segments], begins)
    height = TOP + LANE * len(started) + 26
    lines = (
        (_row_name(row, TOP + LANE * number), _row_bars(row, TOP + LANE * number, begins, length))
        for number, row in enumerate(started)
    )
    return format_html(
        '<svg class="gantt" viewBox="0 0 {} {}" role="group" aria-label="Time breakdown by step">{}{}</svg>',
        WIDTH,
        height,
        _clock(begins, length, height, ROW_LEFT),
        format_html_join("", "<g>{}{}</g>", lines),
    )


def _row_name(row: ChartRow, top: int) -> SafeString:
    short = row.name if len(row.name) <= LONGEST_NAME else f"{row.name[: LONGEST_NAME - 1]}…"
    y = top + LANE / 2 + 4
    text = format_html(
        '<text class="lane" x="{}" y="{}">{}<title>{}</title></text>', ROW_LEFT - 10, y, short, row.name
    )
    return format_html('<a href="{}">{}</a>', row.href, text) if row.href else text


def _row_bars(row: ChartRow, top: int, begins: datetime, length: float) -> SafeString:
    def x(moment: datetime) -> float:
        return _x(moment, begins, length, ROW_LEFT)

    bars = (
        (_bar(each, x(each.begins), x(each.ends), top + (LANE - BAR) / 2, in_lane=True),)
        for each in row.segments
    )
    return format_html_join("", "{}", bars)


def _length(timeline: Iterable[Segment], begins: datetime) -> float:
    return max((max(each.ends for each in timeline) - begins).total_seconds(), 0.001)


def _x(moment: datetime, begins: datetime, length: float, left: int) -> float:
    share = (moment - begins).total_seconds() / length
    return round(left + (WIDTH - left - RIGHT) * min(max(share, 0), 1), 1)


def _top(lane: str) -> float:
    return TOP + LANE * [name for name, _ in LANES].index(lane) + (LANE - BAR) / 2


def _bar(segment: Segment, left: float, right: float, top: float, *, in_lane: bool = False) -> SafeString:
    """Return the bar of a segment. `in_lane` colours it by lane, in a chart whose rows are not lanes."""
    words = f"{segment.words}, {in_words(segment.duration.total_seconds())}"
    return format_html(
        '<g class="{}{}"><rect class="stretch" x="{}" y="{}" width="{}" height="{}" rx="4"><title>{}</title></rect></g>',
        f"of-{segment.lane}" if in_lane else segment.tone,
        " goes-on" if segment.goes_on else "",
        left,
        top,
        max(round(right - left, 1), LEAST),
        BAR,
        f"{words}. {segment.why}" if segment.why else words,
    )


def _mark(x: float, words: str) -> SafeString:
    return format_html(
        '<circle class="mark" cx="{}" cy="{}" r="3.5"><title>{}</title></circle>',
        x,
        TOP + LANE * len(LANES) + 3,
        words,
    )


def _clock(begins: datetime, length: float, height: int, left: int = LEFT) -> SafeString:
    """Return the time axis, with ticks at round times since the beginning."""
    step = next((each for each in _STEPS if length / each <= MOST_TICKS), length / MOST_TICKS)
    ticks = (
        (
            round(left + (WIDTH - left - RIGHT) * (step * number) / length, 1),
            height,
            step * number,
            begins + timedelta(seconds=step * number),
        )
        for number in range(int(length / step) + 1)
    )
    rows = (
        (x, TOP, x, bottom - 18, x, bottom - 4, _label(passed, at, step)) for x, bottom, passed, at in ticks
    )
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
    joined = Segment(
        segment.lane,
        segment.tone,
        last.begins,
        segment.ends,
        segment.words,
        last.why or segment.why,
        segment.goes_on,
    )
    return [*timeline[:-1], joined]


def _why(step: Moment) -> str:
    text = text_of_event(step.facts["detail"], _REASONS)
    by = f"{name_actor(step.facts['actor'])} {past_tense(step.facts['verb'])}"
    return f"{by}: {text}"[:LONGEST_REASON] if text else by
