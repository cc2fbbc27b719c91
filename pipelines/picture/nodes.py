"""The boxes of a picture: who does a step, where it stands, and all that there is no room for in its title."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from pipelines.looks import TONES
from pipelines.picture.cells import WIDTH, Cell, look_of
from pipelines.picture.lettering import SAFE_LINK, drawn_glyph, joined, one_line, safe


def drawn_node(cell: Cell) -> str:
    if not cell.steps:
        return ""
    step, stacked = cell.steps[0], cell.number > 1
    sign = "person" if step.human_role else "agent" if step.agent_role else "template"
    box = f'<rect class="box" width="{WIDTH:g}" height="{cell.height:g}" rx="{18 if step.human_role else 9}"'
    inside = (
        f"<title>{safe(_told(cell), 3000)}</title>",
        f'{box} x="10" y="-10"/>{box} x="5" y="-5"/>' if stacked else "",
        f"{box}/>",
        one_line("name", 14, 21, _name(cell), WIDTH - 24, 9.3),
        drawn_glyph("sign", 20, 36, sign),
        one_line("role", 32, 40, step.human_role or step.agent_role or step.template or "", WIDTH - 48, 7.2),
        *(_state(cell) if cell.pictures else ()),
        *_tags(cell),
        drawn_glyph("gate", WIDTH, cell.height / 2, "rhombus") if cell.gated else "",
        drawn_glyph("glyph", WIDTH, cell.height / 2, "check") if cell.gated else "",
    )
    place = f'class="{cell.tone}" transform="translate({cell.x:.1f} {cell.y - cell.height / 2:.1f})"'
    node = f"<g {place}>{''.join(inside)}</g>"
    href = cell.pictures[0].href if cell.pictures and len(cell.steps) == 1 else None
    return f'<a href="{safe(href, 2000)}">{node}</a>' if href and SAFE_LINK.fullmatch(href) else node


def _state(cell: Cell) -> Iterator[str]:
    looks = sorted(map(look_of, cell.pictures), key=lambda look: TONES.index(look[0]))
    lines = [joined(looks[0][2], cell.pictures[0].detail)]
    if len(looks) > 1:
        counts = [f"{number:,} {words.lower()}" for (_, _, words), number in Counter(looks).items()]
        lines = [joined(*counts[:2]), joined(*counts[2:])]
    yield f'<circle class="disc" cx="20" cy="53" r="6.5"/>{drawn_glyph("glyph", 20, 53, looks[0][1])}'
    for number, line in enumerate(filter(None, lines)):
        yield one_line("more" if number else "state", 32, 57 + 16 * number, line, WIDTH - 50, 7.8)
    x, share = 14.0, (WIDTH - 28) / len(looks)
    for tone, number in Counter(look[0] for look in looks).items() if len(looks) > 1 else ():
        bar = f'x="{x:.1f}" y="{cell.height - 12:g}" width="{share * number:.1f}" height="4"'
        yield f'<rect class="part {tone}" {bar}/>'
        x += share * number


def _tags(cell: Cell) -> Iterator[str]:
    """Small labels on the upper edge, from right to left."""
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
    """The title, or what the titles of a stack have in common."""
    first, last = min(step.title for step in cell.steps), max(step.title for step in cell.steps)
    same = next((place for place, pair in enumerate(zip(first, last, strict=False)) if pair[0] != pair[1]), 0)
    common = first if first == last else first[:same].rstrip(" -_.:#0123456789")
    return common or f"{first} \u2026 {last}"


def _told(cell: Cell) -> str:
    """All that the box has no room for."""
    step, more = cell.steps[0], len(cell.steps) - 12
    states = [joined(look_of(picture)[2], picture.detail) for picture in cell.pictures[:12]]
    if cell.number > len(cell.steps):
        branches = Counter(look_of(picture)[2].lower() for picture in cell.pictures)
        states = [joined(*(f"{number:,} {words}" for words, number in branches.items()))]
    who = step.human_role or step.agent_role or step.template
    lines = [joined(each.title, who, *states[n : n + 1]) for n, each in enumerate(cell.steps[:12])]
    lines += [f"and {more:,} more"] * (more > 0) + ["A person approves before the next step."] * cell.gated
    lines += [f"Only if {step.when}"] * bool(step.when)
    lines += [f"For each of {step.for_each}"] * bool(step.for_each)
    return "\n".join(lines)
