"""The lines of a picture, from layer to layer."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from pipelines.picture.cells import Cell

MOST_LINKS = 8_000  # drawn; more would be a black patch of many megabytes


def drawn_edges(cells: Iterable[Cell]) -> Iterator[str]:
    """Curves from layer to layer, those that tell something above the others; one arrow head for each box."""
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
        yield f'<text class="role" x="26" y="16">{len(links) - MOST_LINKS:,} more lines are not drawn.</text>'
