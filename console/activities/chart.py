"""The stretches of an activity as a picture: three lanes under one clock, drawn here without scripts or styles of its own."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from console.activities.segments import Segment
from console.labels import in_words

LANES = (("waits", "Waiting"), ("agent", "Agent"), ("people", "People"))
LEFT, RIGHT, TOP = 78, 12, 8
WIDTH, LANE, BAR = 900, 34, 20
LEAST = 3  # a stretch that is too short to be seen is this wide
_STEPS = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1_800, 3_600, 7_200, 14_400, 43_200, 86_400)  # seconds
MOST_TICKS = 7


def drawn(found: Sequence[Segment], marks: Sequence[tuple[datetime, str]] = ()) -> SafeString:
    """The picture, or nothing where nothing has happened. `marks` are moments with their words: wakes and calls of tools."""
    if not found:
        return SafeString("")
    begins = found[0].begins
    length = max((max(each.ends for each in found) - begins).total_seconds(), 0.001)
    height = TOP + LANE * len(LANES) + 26

    def x(moment: datetime) -> float:
        share = (moment - begins).total_seconds() / length
        return round(LEFT + (WIDTH - LEFT - RIGHT) * min(max(share, 0), 1), 1)

    return format_html(
        '<svg class="gantt" viewBox="0 0 {} {}" role="img" aria-label="What its time was spent with">{}{}{}{}</svg>',
        WIDTH,
        height,
        _lanes(),
        _clock(begins, length, height),
        format_html_join("", "{}", ((_bar(each, x(each.begins), x(each.ends)),) for each in found)),
        format_html_join("", "{}", ((_mark(x(at), words),) for at, words in marks)),
    )


def _lanes() -> SafeString:
    rows = ((LEFT - 10, _top(lane) + BAR / 2 + 4, words) for lane, words in LANES)
    return format_html_join("", '<text class="lane" x="{}" y="{}">{}</text>', rows)


def _top(lane: str) -> float:
    return TOP + LANE * [name for name, _ in LANES].index(lane) + (LANE - BAR) / 2


def _bar(segment: Segment, left: float, right: float) -> SafeString:
    words = f"{segment.words}, {in_words(segment.lasted.total_seconds())}"
    return format_html(
        '<g class="{}{}"><rect class="stretch" x="{}" y="{}" width="{}" height="{}" rx="4"><title>{}</title></rect></g>',
        segment.tone,
        " goes-on" if segment.goes_on else "",
        left,
        _top(segment.lane),
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


def _clock(begins: datetime, length: float, height: int) -> SafeString:
    """Lines at round times since the beginning."""
    step = next((each for each in _STEPS if length / each <= MOST_TICKS), length / MOST_TICKS)
    ticks = (
        (
            round(LEFT + (WIDTH - LEFT - RIGHT) * (step * number) / length, 1),
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
