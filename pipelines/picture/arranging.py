"""Where the cells of a picture are: their layers, then the order within each, then exact heights."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from pipelines.picture.cells import WIDTH, Cell

MARGIN = 26.0
LAYER_GAP = 62.0
ROW_GAP = 24.0  # leaves room for the tags on the upper edge of the box below
MOST_PASSAGES = 4_000  # long edges beyond are drawn straight, behind whatever lies between
SWEEPS = 8


def arranged(boxes: list[Cell]) -> list[Cell]:
    """Boxes and passages with their places, each linked to its neighbours in the next layers."""
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
        x += min(90, steepest / 6)  # steep edges get more room to bend
        for cell in layer:
            cell.x = x
        x += WIDTH + LAYER_GAP
    return cells


def _passages(boxes: Iterable[Cell]) -> list[Cell]:
    """Breaks long edges into links from layer to layer. All long edges of one box share their passages."""
    made: list[Cell] = []
    ways: dict[Cell, list[Cell]] = defaultdict(list)
    for box in boxes:
        for index, source in enumerate(box.before):
            way, length = ways[source], box.layer - source.layer - 1
            while len(way) < length and len(made) < MOST_PASSAGES:
                passage = Cell(source.layer + len(way) + 1, source.tone, before=way[-1:] or [source])
                way.append(passage)
                made.append(passage)
            box.before[index] = way[min(length, len(way)) - 1] if length and way else source
    return made


def _order(layer: list[Cell], *, by_before: bool) -> None:
    """Sorts a layer by the mean rank of its neighbours on one side; who has none there keeps its place."""
    for cell in layer:
        neighbours = cell.before if by_before else cell.after
        if neighbours:
            cell.rank = sum(each.rank for each in neighbours) / len(neighbours)
    layer.sort(key=lambda cell: cell.rank)
    for place, cell in enumerate(layer):
        cell.rank = place - (len(layer) - 1) / 2  # around the middle, so that layers of any length compare


def _settle(layer: list[Cell], *, before: bool, after: bool) -> None:
    """Moves each cell as near to the mean of its neighbours as order and distances allow.

    Least squares: cells that want to pass each other become a block that moves to its common mean. Passages
    weigh more, so that long edges run straight.
    """
    offset = 0.0
    blocks: list[tuple[float, float, list[tuple[Cell, float]]]] = []  # sum of wishes, weight, members
    for place, cell in enumerate(layer):
        if place:
            upper = layer[place - 1]
            gap = ROW_GAP if upper.steps and cell.steps else ROW_GAP / 2
            offset += (upper.height + cell.height) / 2 + gap
        near = cell.before * before + cell.after * after
        wish = sum(each.y for each in near) / len(near) if near else cell.y
        weight = (1.0 if cell.steps else 4.0) if near else 0.01
        total, members = (wish - offset) * weight, [(cell, offset)]
        while blocks and blocks[-1][0] / blocks[-1][1] >= total / weight:
            other = blocks.pop()
            total, weight, members = total + other[0], weight + other[1], other[2] + members
        blocks.append((total, weight, members))
    for total, weight, members in blocks:
        for cell, offset in members:
            cell.y = total / weight + offset
