"""Draws a pipeline as one SVG: its dependencies from left to right, and the state of each step.

The picture is self-contained: it loads nothing, has no scripts, and follows the reader's light or dark setting.
Colour alone never conveys a state. Texts are escaped and links are checked, because agents write some of them.

More than a dozen interchangeable steps become one stack with the sum of their states, so a fan-out over a
thousand items stays readable. A page whose content security policy forbids inline styles allows `STYLE` by its
hash, or includes it in its own style sheet.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from html import escape
from unicodedata import east_asian_width

from activities.states import STATUSES
from pipelines.definition import PipelineDefinition, StepDefinition
from pipelines.graph import Graph


def draw(
    definition: PipelineDefinition,
    states: States | None,
    *,
    title: str,
    dark: bool = False,
    counts: Counts | None = None,
    styled: bool = True,
    widest: float | None = None,
) -> str:
    """Return the picture as SVG text: the plan, or with states, the run.

    `dark` is for pages that are always dark. Without `styled`, the page's own style sheet must have the `RULES`. A picture that is wider
    than `widest` pixels is scaled down as far as it stays readable. A step with `counts` is one box with the sum of its branches. Time and
    size are bounded: at most 8,000 lines are drawn, and the picture says how many are missing.
    """
    cells = arrange_boxes(boxes_of(definition, states, counts or {}))
    width = max(cell.right for cell in cells) + MARGIN
    height = max(cell.y + cell.height / 2 for cell in cells) + MARGIN
    size = f'width="{width:.0f}" height="{height:.0f}"'
    scale = 1.0 if widest is None else max(SMALLEST, min(1.0, widest / width))
    scaled_size = f'width="{width * scale:.0f}" height="{height * scale:.0f}"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="pipeline-picture{" dark" * dark}" role="group"'
        f' aria-label="{safe(title)}" {scaled_size} viewBox="0 0 {width:.0f} {height:.0f}">'
        f"<title>{safe(title)}</title>{f'<style>{STYLE}</style>' * styled}"
        f'<rect class="canvas" {size} rx="12"/>{"".join(draw_edges(cells))}{"".join(map(draw_node, cells))}</svg>'
    )


SMALLEST = 0.7  # scale, at which letters of 13 pixels have 9


# The positions of the cells: their layers, then the order within each layer, then their exact heights.


MARGIN = 26.0
LAYER_GAP = 62.0
ROW_GAP = 24.0  # includes room for the tags on the upper edge of the box below
MOST_PASSAGES = 4_000  # further long edges are drawn straight, behind the boxes in between
SWEEPS = 8


def arrange_boxes(boxes: list[Cell]) -> list[Cell]:
    """Return boxes and passages (where an edge crosses a layer) with their positions, linked to their neighbours in the next layers."""
    cells = boxes + _passages(boxes)
    layers: list[list[Cell]] = [[] for _ in range(1 + max(box.layer for box in boxes))]
    for cell in cells:
        layers[cell.layer].append(cell)
        for earlier in cell.before:
            earlier.after.append(cell)
    for turn in range(SWEEPS):
        for layer in layers if turn % 2 == 0 else reversed(layers):
            _order(layer, by_before=turn % 2 == 0)
    for turn in range(SWEEPS):
        both = turn >= SWEEPS - 2
        for layer in layers if turn % 2 == 0 else reversed(layers):
            _settle(layer, before=both or turn % 2 == 0, after=both or turn % 2 == 1)
    top, x = min(cell.y - cell.height / 2 for cell in cells) - MARGIN, MARGIN
    for cell in cells:
        cell.y -= top
    for layer in layers:
        steepest = max((abs(cell.y - earlier.y) for cell in layer for earlier in cell.before), default=0)
        x += min(90, steepest / 6)  # steep edges need more room to bend
        for cell in layer:
            cell.x = x
        x += WIDTH + LAYER_GAP
    return cells


def _passages(boxes: Iterable[Cell]) -> list[Cell]:
    """Split long edges into links from layer to layer. All long edges of one box share their passages."""
    cells: list[Cell] = []
    ways: dict[Cell, list[Cell]] = defaultdict(list)
    for box in boxes:
        for index, source in enumerate(box.before):
            way, length = ways[source], box.layer - source.layer - 1
            while len(way) < length and len(cells) < MOST_PASSAGES:
                passage = Cell(source.layer + len(way) + 1, source.tone, before=way[-1:] or [source])
                way.append(passage)
                cells.append(passage)
            box.before[index] = way[min(length, len(way)) - 1] if length and way else source
    return cells


def _order(layer: list[Cell], *, by_before: bool) -> None:
    """Sort a layer by the mean rank of the cells' neighbours on one side. A cell without neighbours there keeps its rank."""
    for cell in layer:
        neighbours = cell.before if by_before else cell.after
        if neighbours:
            cell.rank = sum(each.rank for each in neighbours) / len(neighbours)
    layer.sort(key=lambda cell: cell.rank)
    for place, cell in enumerate(layer):
        # Relative to the middle, so that layers of any length are comparable.
        cell.rank = place - (len(layer) - 1) / 2


def _settle(layer: list[Cell], *, before: bool, after: bool) -> None:
    """Move each cell as near to the mean of its neighbours as the order and the gaps allow.

    Uses least squares: cells that would pass each other become a block that moves to its common mean. Passages
    have more weight, so that long edges are straight.
    """
    offset = 0.0
    blocks: list[tuple[float, float, list[tuple[Cell, float]]]] = []  # sum of targets, weight, members
    for place, cell in enumerate(layer):
        if place:
            upper = layer[place - 1]
            gap = ROW_GAP if upper.steps and cell.steps else ROW_GAP / 2
            offset += (upper.height + cell.height) / 2 + gap
        near = cell.before * before + cell.after * after
        target = sum(each.y for each in near) / len(near) if near else cell.y
        weight = (1.0 if cell.steps else 4.0) if near else 0.01
        total, members = (target - offset) * weight, [(cell, offset)]
        while blocks and blocks[-1][0] / blocks[-1][1] >= total / weight:
            other = blocks.pop()
            total, weight, members = total + other[0], weight + other[1], other[2] + members
        blocks.append((total, weight, members))
    for total, weight, members in blocks:
        for cell, offset in members:
            cell.y = total / weight + offset


# The cells of a picture: a step, a stack of equal steps, or the passage of a long edge through a layer.


STACK_ABOVE = 12  # equal steps; that many still fit on a screen
WIDTH = 220.0


@dataclass(eq=False, slots=True)
class Cell:
    """A box or a passage. `x` is its left edge, `y` its middle. A passage has no steps, and the tone of the edge's source."""

    layer: int
    tone: str
    steps: list[StepDefinition] = field(default_factory=list)
    pictures: Sequence[StepPicture] = ()  # empty in a plan; several of one step are its branches
    height: float = 0.0
    x: float = 0.0
    y: float = 0.0
    rank: float = 0.0
    before: list[Cell] = field(default_factory=list)
    after: list[Cell] = field(default_factory=list)

    @property
    def gated(self) -> bool:
        return any(step.is_approval_gate or step.requires_approval for step in self.steps[:1])

    @property
    def number(self) -> int:
        """How many steps or branches it stands for."""
        return max(len(self.steps), len(self.pictures))

    @property
    def right(self) -> float:
        """The x at which its edges begin."""
        return self.x + WIDTH + max(12 * self.gated, 10 * (self.number > 1))


def boxes_of(definition: PipelineDefinition, states: States | None, counts: Counts) -> list[Cell]:
    """Return the boxes in the order of the definition, each linked to the boxes before it."""
    graph = Graph.of(definition)
    layer_of = {step: layer for layer, members in enumerate(graph.layers()) for step in members}
    alike = graph.number_alike({step.id: _shape(step) for step in definition.steps})
    equals: dict[int, list[StepDefinition]] = defaultdict(list)
    for step in definition.steps:
        equals[alike[step.id]].append(step)
    box_of: dict[str, Cell] = {}
    for step in definition.steps:
        if step.id not in box_of:
            members = equals[alike[step.id]]
            box = _box(layer_of[step.id], members if len(members) > STACK_ABOVE else [step], states, counts)
            box_of.update((each.id, box) for each in box.steps)
    boxes = list(dict.fromkeys(box_of.values()))
    for box in boxes:
        box.before = list(dict.fromkeys(box_of[each] for step in box.steps for each in step.depends_on))
    return boxes


def _shape(step: StepDefinition) -> tuple[object, ...]:
    gates = (step.is_approval_gate, step.requires_approval)
    return (step.template, step.agent_role, step.human_role, gates, step.when is None, step.for_each is None)


def _box(layer: int, steps: list[StepDefinition], states: States | None, counts: Counts) -> Cell:
    if states is None:
        return Cell(layer, "plan", steps, height=48)
    pictures = [states.get(step.id) or StepPicture() for step in steps]
    if len(steps) == 1 and any((branches := counts.get(steps[0].id, {})).values()):
        whole = replace(pictures[0], detail="")
        pictures = [each for status, n in branches.items() for each in [replace(whole, status=status)] * n]
    styles = {style_of(picture) for picture in pictures}
    tone = next(tone for tone in TONES if any(style[0] == tone for style in styles))
    return Cell(layer, tone, steps, pictures, 66 + (12 + 16 * (len(styles) > 2)) * (len(pictures) > 1))


def style_of(picture: StepPicture) -> tuple[str, str, str]:
    return STATUS_STYLES.get(picture.status) or (
        "idle",
        "dots",
        picture.status.replace("_", " ").capitalize(),
    )


MOST_LINKS = 8_000  # that are drawn; more would be unreadable, and many megabytes


def draw_edges(cells: Iterable[Cell]) -> Iterator[str]:
    """Draw curves from layer to layer, those with a state on top, and one arrow head for each box."""
    weights = {"good": 1, "bad": 2}
    links = [(earlier, cell) for cell in cells for earlier in cell.before]
    links.sort(key=lambda link: weights.get(link[0].tone, 0))
    for earlier, cell in links[-MOST_LINKS:]:
        x0, y0, x1, y1 = earlier.right, earlier.y, cell.x - 7 * bool(cell.steps), cell.y
        middle, straight = (x0 + x1) / 2, abs(y1 - y0) < 0.5
        curve = "" if straight else f"C{middle:.1f} {y0:.1f} {middle:.1f} {y1:.1f} {x1:.1f} {y1:.1f}"
        end = x1 if cell.steps else cell.right
        yield f'<path class="edge {earlier.tone}" d="M{x0:.1f} {y0:.1f}{curve}H{end:.1f}"/>'
    for cell in cells:
        if cell.steps and cell.before:
            tone = max((each.tone for each in cell.before), key=lambda tone: weights.get(tone, 0))
            yield f'<path class="head {tone}" d="M{cell.x - 9:.1f} {cell.y - 5:.1f}l9 5-9 5z"/>'
    if len(links) > MOST_LINKS:
        yield f'<text class="role" x="26" y="16">Lines that are not drawn: {len(links) - MOST_LINKS:,}.</text>'


# The texts and signs of a picture, escaped and shortened to fit.


def join_parts(*parts: str | None) -> str:
    return " \u00b7 ".join(filter(None, parts))


# Characters that XML forbids, or that change the direction of the surrounding text.
UNFIT = re.compile("[^\t\n -~\xa0-\u2029\u202f-\u2065\u206a-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
SAFE_LINK = re.compile(r"(?:https?://|/(?!/)|[?#])[^\s\\]*")
NARROW = frozenset("iljtfrI1.,:;'|!()[]/ -")


def safe(text: str, most: int = 300) -> str:
    return escape(UNFIT.sub("\ufffd", text[:most]))


def draw_glyph(kind: str, x: float, y: float, glyph: str) -> str:
    return f'<path class="{kind}" transform="translate({x:g} {y:g})" d="{GLYPHS[glyph]}"/>' if glyph else ""


def one_line(kind: str, x: float, y: float, text: str, width: float, wide: float) -> str:
    """Draw one line that fits. The fonts are unknown here, so most letters are assumed to be `wide`, which is generous."""
    text, used = " ".join(text[:200].split()), 0.0
    for place, letter in enumerate(text):
        used += wide * (0.6 if letter in NARROW else 1.6 if east_asian_width(letter) in "WF" else 1.0)
        if used > width:
            text = text[: max(1, place - 1)].rstrip() + "\u2026"
            break
    return f'<text class="{kind}" x="{x:g}" y="{y:g}">{safe(text)}</text>'


# The boxes of a picture: who does the step, its state, and a title with all further details.


def draw_node(cell: Cell) -> str:
    if not cell.steps:
        return ""
    step, stacked = cell.steps[0], cell.number > 1
    sign = "person" if step.human_role else "agent" if step.agent_role else "template"
    box = f'<rect class="box" width="{WIDTH:g}" height="{cell.height:g}" rx="{18 if step.human_role else 9}"'
    inside = (
        f"<title>{safe(_describe_cell(cell), 3000)}</title>",
        f'{box} x="10" y="-10"/>{box} x="5" y="-5"/>' if stacked else "",
        f"{box}/>",
        one_line("name", 14, 21, _name(cell), WIDTH - 24, 9.3),
        draw_glyph("sign", 20, 36, sign),
        one_line("role", 32, 40, step.human_role or step.agent_role or step.template or "", WIDTH - 48, 7.2),
        *(_state(cell) if cell.pictures else ()),
        *_tags(cell),
        draw_glyph("gate", WIDTH, cell.height / 2, "rhombus") if cell.gated else "",
        draw_glyph("glyph", WIDTH, cell.height / 2, "check") if cell.gated else "",
    )
    place = f'class="{cell.tone}" transform="translate({cell.x:.1f} {cell.y - cell.height / 2:.1f})"'
    node = f"<g {place}>{''.join(inside)}</g>"
    href = cell.pictures[0].href if cell.pictures and len(cell.steps) == 1 else None
    return f'<a href="{safe(href, 2000)}">{node}</a>' if href and SAFE_LINK.fullmatch(href) else node


def _state(cell: Cell) -> Iterator[str]:
    styles = sorted(map(style_of, cell.pictures), key=lambda style: TONES.index(style[0]))
    lines = [join_parts(styles[0][2], cell.pictures[0].detail)]
    if len(styles) > 1:
        counts = [f"{number:,} {words.lower()}" for (_, _, words), number in Counter(styles).items()]
        lines = [join_parts(*counts[:2]), join_parts(*counts[2:])]
    yield f'<circle class="disc" cx="20" cy="53" r="6.5"/>{draw_glyph("glyph", 20, 53, styles[0][1])}'
    for number, line in enumerate(filter(None, lines)):
        yield one_line("more" if number else "state", 32, 57 + 16 * number, line, WIDTH - 50, 7.8)
    x, share = 14.0, (WIDTH - 28) / len(styles)
    for tone, number in Counter(style[0] for style in styles).items() if len(styles) > 1 else ():
        bar = f'x="{x:.1f}" y="{cell.height - 12:g}" width="{share * number:.1f}" height="4"'
        yield f'<rect class="part {tone}" {bar}/>'
        x += share * number


def _tags(cell: Cell) -> Iterator[str]:
    """Draw small labels on the upper edge, from right to left."""
    step, rounds = cell.steps[0], max((picture.round for picture in cell.pictures), default=1)
    tags = [f"\u00d7 {cell.number:,}"] if cell.number > 1 else []
    tags += [f"round {rounds}"] if rounds > 1 else []
    right = WIDTH - 12
    for tag in (*tags, *["each"] * bool(step.for_each), *["if"] * bool(step.when)):
        width = 12 + 6.2 * len(tag)
        yield f'<rect class="pill" x="{right - width:.1f}" y="-8" width="{width:.1f}" height="16" rx="8"/>'
        yield f'<text class="tag" x="{right - width / 2:.1f}" y="3.5">{tag}</text>'
        right -= width + 4


def _name(cell: Cell) -> str:
    """Return the title, or the common beginning of the titles of a stack."""
    first, last = min(step.title for step in cell.steps), max(step.title for step in cell.steps)
    same = next((place for place, pair in enumerate(zip(first, last, strict=False)) if pair[0] != pair[1]), 0)
    common = first if first == last else first[:same].rstrip(" -_.:#0123456789")
    return common or f"{first} \u2026 {last}"


def _describe_cell(cell: Cell) -> str:
    """Return the details for which the box has no room."""
    step, more = cell.steps[0], len(cell.steps) - 12
    states = [join_parts(style_of(picture)[2], picture.detail) for picture in cell.pictures[:12]]
    if cell.number > len(cell.steps):
        branches = Counter(style_of(picture)[2].lower() for picture in cell.pictures)
        states = [join_parts(*(f"{number:,} {words}" for words, number in branches.items()))]
    who = step.human_role or step.agent_role or step.template
    lines = [join_parts(each.title, who, *states[n : n + 1]) for n, each in enumerate(cell.steps[:12])]
    lines += [f"and {more:,} more"] * (more > 0) + ["A person approves before the next step."] * cell.gated
    lines += [f"Only if {step.when}"] * bool(step.when)
    lines += [f"For each of {step.for_each}"] * bool(step.for_each)
    return "\n".join(lines)


# The states of steps, in the form that a picture needs.


@dataclass(frozen=True, slots=True)
class StepPicture:
    """The status of a step (its activity's or its own), and a detail such as its duration."""

    status: str = "pending"
    detail: str = ""
    href: str | None = None
    round: int = 1


States = Mapping[str, StepPicture]  # by step id; a missing step is pending
#: For fanned-out steps: the number of branches by status, by step id.
Counts = Mapping[str, Mapping[str, int]]


# The style of steps: tone, glyph and words for each status, and the light and dark styles.
#
# The tone alone never conveys a state: each has its own glyph and words.


TONES = ("bad", "ask", "live", "idle", "good", "off")  # most important first
STATUS_STYLES = {  # tone, glyph and words by status of a step or its activity
    "pending": ("idle", "", "Waiting"),
    "active": ("live", "play", "Running"),
    "skipped": ("off", "skip", "Skipped"),
    "condition_unmet": ("off", "fork", "Condition not met"),
    **{str(status): (spec.tone, spec.glyph, spec.words) for status, spec in STATUSES.items()},
}
GLYPHS = {  # strokes around (0, 0)
    "rhombus": "M-12 0 0-12 12 0 0 12Z",
    "dots": "M-3.2 0h.01M0 0h.01M3.2 0h.01",
    "play": "M-1.7-2.8 3 0-1.7 2.8Z",
    "pause": "M-1.8-2.5V2.5M1.8-2.5V2.5",
    "bar": "M-3 0H3",
    "check": "M-3.1.2-1 2.4 3.2-2.3",
    "back": "M3 2.4V-.6H-3M-.9-2.7-3-.6-.9 1.5",
    "cross": "M-2.4-2.4 2.4 2.4M2.4-2.4-2.4 2.4",
    "bang": "M0-3.3V.6M0 3.1V3.2",
    "skip": "M-3.2-2.4-.6 0-3.2 2.4M.8-2.4 3.4 0 .8 2.4",
    "slash": "M-2.5 2.5 2.5-2.5",
    "fork": "M-3.4 0H-.8L2.8-2.6M-.8 0 .6 1M1.8 1.8 2.8 2.6",
    "agent": "M-5-1.5a2 2 0 0 1 2-2H3a2 2 0 0 1 2 2V3a2 2 0 0 1-2 2H-3a2 2 0 0 1-2-2ZM0-4V-5M-2 0v1M2 0v1",
    "person": "M0-.8a2.5 2.5 0 1 0 0-5 2.5 2.5 0 0 0 0 5ZM-4.6 5c0-2.8 2-4 4.6-4s4.6 1.2 4.6 4",
    "template": "M-4-5H1L4-2V5H-4ZM1-5V-2H4",
}
LIGHT = (
    "color-scheme:light;--canvas:#f7f8fa;--card:#fff;--line:#b9c0cc;--ink:#1b2230;--mute:#59627a;--edge:#a3abba;"
    "--idle:#5f6880;--idle-tint:#fff;--live:#1f57c3;--live-tint:#eef4ff;--ask:#8a5500;--ask-tint:#fff6e3;"
    "--good:#17713f;--good-tint:#eefaf2;--bad:#b51f31;--bad-tint:#fff0f0;--off:#5d6579;--off-tint:#f1f2f5"
)
DARK = (
    "color-scheme:dark;--canvas:#11151d;--card:#1a202b;--line:#434c5e;--ink:#e8ecf4;--mute:#a1abc0;--edge:#566177;"
    "--idle:#a1abc0;--idle-tint:#1a202b;--live:#79a8ff;--live-tint:#172440;--ask:#f0b64b;--ask-tint:#2e2411;"
    "--good:#5fce8f;--good-tint:#12291d;--bad:#ff7d85;--bad-tint:#351a20;--off:#8d96aa;--off-tint:#161b24"
)
_RULES = """
.plan{--tone:var(--line);--tint:var(--card)} .canvas{fill:var(--canvas)}
.box{fill:var(--tint);stroke:var(--tone);stroke-width:1.5} .off .box{stroke-dasharray:4 3}
.name{fill:var(--ink);font-size:13px;font-weight:600} .role,.more{fill:var(--mute)}
.state{fill:var(--tone);font-weight:600} .part,.disc{fill:var(--tone)}
.idle .disc{fill:none;stroke:var(--tone);stroke-width:1.5} .idle .glyph{stroke:var(--tone)}
.glyph{fill:none;stroke:var(--tint);stroke-width:1.7;stroke-linecap:round;stroke-linejoin:round}
.sign{fill:none;stroke:var(--mute);stroke-width:1.3;stroke-linecap:round;stroke-linejoin:round}
.gate{fill:var(--card);stroke:var(--ask);stroke-width:1.5} .gate+.glyph{stroke:var(--ask)}
.good .gate{fill:var(--good);stroke:var(--good)} .good .gate+.glyph{stroke:var(--tint)}
.pill{fill:var(--card);stroke:var(--tone)} .tag{fill:var(--mute);font:600 10px system-ui;text-anchor:middle}
.edge{fill:none;stroke:var(--edge);stroke-width:1.5} .edge.off{stroke-dasharray:5 4} .head{fill:var(--edge)}
.edge.good,.edge.bad{stroke:var(--tone);stroke-width:2} .edge.bad{stroke-dasharray:2 4}
.head.good,.head.bad{fill:var(--tone)} a:hover .box,a:focus-visible .box{stroke-width:3} a:focus{outline:none}
"""
_SCOPED = re.sub(r"(?m)(^|,|\} )(?=[.a])", r"\1.pipeline-picture ", _RULES.strip()).replace("\n", "")
_TONED = "".join(f".pipeline-picture .{t}{{--tone:var(--{t});--tint:var(--{t}-tint)}}" for t in TONES)
#: Everything but the colours, for pages that define these themselves by the same names.
RULES = f"{_TONED}{_SCOPED}"
STYLE = (
    f".pipeline-picture{{{LIGHT};font:11.5px system-ui,sans-serif}}.pipeline-picture.dark{{{DARK}}}"
    f"@media(prefers-color-scheme:dark){{.pipeline-picture{{{DARK}}}}}{RULES}"
)
