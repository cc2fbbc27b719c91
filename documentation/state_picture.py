"""Draws the state diagrams of the site as SVG, from the Mermaid text that GitHub renders.

Mermaid itself has five megabytes and runs in the reader's browser, so the pictures are drawn when the site is built. A status of the text
without a place here is an error, so none can be missing from the picture.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from html import escape

FENCE = re.compile(r"^```mermaid\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
_ARROW = re.compile(r"^\s*(?P<source>\S+) --> (?P<target>\S+?)(?:: (?P<verbs>.+))?$", re.MULTILINE)
_KIND = "stateDiagram-v2"
_OUTSIDE = "[*]"

WIDTH, HEIGHT = 1060, 650
BOX_WIDTH, BOX_HEIGHT = 150, 34

Point = tuple[float, float]

#: The centre of each box.
PLACES: dict[str, Point] = {
    "created": (120, 300), "assigned": (340, 300), "in_progress": (560, 300), "awaiting_approval": (890, 300),
    "blocked": (780, 70), "awaiting_subtask": (780, 130), "awaiting_review": (780, 190),
    "failed": (430, 420), "needs_review": (215, 420),
    "done": (890, 400), "approved": (890, 470), "rejected": (890, 540),
    "reassigned": (120, 620), "cancelled": (300, 620),
}  # fmt: skip
#: The start of a curve, its two control points and its end. All other arrows are straight.
BENDS: dict[tuple[str, str], tuple[Point, Point, Point, Point]] = {
    ("assigned", "created"): ((290, 283), (270, 255), (200, 255), (175, 283)),
    ("in_progress", "created"): ((520, 283), (470, 200), (230, 200), (150, 283)),
    ("created", "in_progress"): ((150, 317), (230, 372), (470, 372), (520, 317)),
    ("blocked", "created"): ((705, 62), (420, 20), (90, 20), (80, 283)),
    ("awaiting_subtask", "created"): ((705, 122), (450, 80), (130, 80), (100, 283)),
    ("awaiting_review", "created"): ((705, 182), (450, 140), (150, 140), (120, 283)),
    ("created", "awaiting_review"): ((138, 283), (180, 175), (450, 175), (705, 194)),
    ("in_progress", "blocked"): ((555, 283), (560, 150), (640, 78), (705, 74)),
    ("in_progress", "awaiting_subtask"): ((575, 283), (590, 190), (650, 140), (705, 136)),
    ("in_progress", "awaiting_review"): ((600, 283), (625, 235), (660, 205), (705, 201)),
    ("created", "done"): ((110, 317), (110, 580), (640, 480), (815, 406)),
    ("created", "approved"): ((90, 317), (90, 620), (650, 560), (815, 476)),
    ("created", "rejected"): ((70, 317), (70, 670), (660, 640), (815, 546)),
    ("failed", "created"): ((400, 403), (370, 350), (240, 385), (160, 317)),
    ("needs_review", "created"): ((150, 403), (135, 380), (130, 350), (128, 317)),
    ("in_progress", "done"): ((610, 317), (690, 370), (740, 394), (815, 396)),
    ("in_progress", "approved"): ((595, 317), (650, 420), (730, 462), (815, 464)),
    ("in_progress", "rejected"): ((580, 317), (610, 470), (710, 530), (815, 534)),
    ("awaiting_approval", "approved"): ((955, 317), (1000, 360), (1000, 440), (965, 464)),
    ("awaiting_approval", "rejected"): ((965, 310), (1035, 360), (1035, 500), (965, 536)),
}
#: The position of an arrow's verbs along its curve, if the middle is crowded.
_VERBS_AT = {
    ("created", "done"): 0.62, ("created", "approved"): 0.62, ("created", "rejected"): 0.62,
    ("in_progress", "done"): 0.55, ("in_progress", "approved"): 0.62, ("in_progress", "rejected"): 0.66,
    ("in_progress", "blocked"): 0.62, ("in_progress", "awaiting_subtask"): 0.56, ("in_progress", "awaiting_review"): 0.42,
    ("awaiting_approval", "approved"): 0.3, ("awaiting_approval", "rejected"): 0.62,
    ("created", "in_progress"): 0.3, ("assigned", "failed"): 0.65, ("failed", "created"): 0.35, ("needs_review", "created"): 0.4,
    ("created", "awaiting_review"): 0.55, ("awaiting_review", "created"): 0.35,
}  # fmt: skip


def replace_diagrams(markdown: str) -> str:
    """Replace each diagram by its picture. Raises `ValueError` for a diagram that cannot be drawn."""
    return FENCE.sub(lambda fence: draw(fence["text"]), markdown)


def draw(text: str) -> str:
    """Return the SVG for a page, whose style sheet sets the colours."""
    if _KIND not in text:
        raise ValueError(f"only diagrams of the kind {_KIND} are drawn")
    arrows = [(arrow["source"], arrow["target"], arrow["verbs"] or "") for arrow in _ARROW.finditer(text)]
    if missing := {end for arrow in arrows for end in arrow[:2]} - PLACES.keys() - {_OUTSIDE}:
        raise ValueError(f"no place in the picture for {', '.join(sorted(missing))}")
    finals = {source for source, target, _ in arrows if target == _OUTSIDE}
    shapes = "".join([*_lines(arrows), *_boxes(finals)])
    title = "Statuses of an activity, and the verbs that lead from one to the next"
    return (
        f'<svg class="states" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{title}"><title>{title}</title><defs>'
        '<marker id="states-head" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="8" markerHeight="8" orient="auto">'
        f'<path d="M0 1 10 5 0 9z"/></marker></defs>{shapes}</svg>'
    )


def _lines(arrows: list[tuple[str, str, str]]) -> Iterator[str]:
    words = []
    for source, target, verbs in arrows:
        if source == _OUTSIDE:
            x, y = PLACES[target]
            curve = ((6.0, y), (20.0, y), (30.0, y), (x - BOX_WIDTH / 2, y))
        elif target == _OUTSIDE:
            continue  # the double frame shows it
        else:
            curve = BENDS.get((source, target)) or _straight(PLACES[source], PLACES[target])
        (x0, y0), (x1, y1), (x2, y2), (x3, y3) = curve
        yield f'<path class="arrow" marker-end="url(#states-head)" d="M{x0} {y0}C{x1} {y1} {x2} {y2} {x3} {y3}"/>'
        x, y = _at(curve, _VERBS_AT.get((source, target), 0.5))
        words.append(f'<text class="verb" x="{x:.0f}" y="{y - 5:.0f}">{escape(verbs)}</text>')
    yield from words


def _boxes(finals: set[str]) -> Iterator[str]:
    for status, (x, y) in PLACES.items():
        left, top = x - BOX_WIDTH / 2, y - BOX_HEIGHT / 2
        if status in finals:
            yield _frame("status", left - 4, top - 4, BOX_WIDTH + 8, BOX_HEIGHT + 8)
        yield _frame("status", left, top, BOX_WIDTH, BOX_HEIGHT)
        yield f'<text class="name" x="{x}" y="{y + 5}">{status}</text>'


def _frame(kind: str, left: float, top: float, width: float, height: float) -> str:
    return f'<rect class="{kind}" x="{left}" y="{top}" width="{width}" height="{height}" rx="9"/>'


def _straight(source: Point, target: Point) -> tuple[Point, Point, Point, Point]:
    """Return a straight curve between the edges of two boxes."""
    begin, end = _rim(source, target), _rim(target, source)
    return begin, begin, end, end


def _rim(box: Point, towards: Point) -> Point:
    (x, y), (dx, dy) = box, (towards[0] - box[0], towards[1] - box[1])
    part = min(BOX_WIDTH / 2 / abs(dx) if dx else 1e9, BOX_HEIGHT / 2 / abs(dy) if dy else 1e9)
    return x + dx * part, y + dy * part


def _at(curve: tuple[Point, Point, Point, Point], part: float) -> Point:
    weights = ((1 - part) ** 3, 3 * part * (1 - part) ** 2, 3 * part**2 * (1 - part), part**3)
    return (
        sum(weight * point[0] for weight, point in zip(weights, curve, strict=True)),
        sum(weight * point[1] for weight, point in zip(weights, curve, strict=True)),
    )
