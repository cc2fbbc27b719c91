"""A pipeline as one SVG: what depends on what, from left to right, and where each step stands.

The picture is complete in itself: it fetches nothing, runs nothing and follows the reader's light or dark
setting. No state is told by colour alone. Every text is escaped and every link checked, as agents write some.

More than a dozen steps that look alike and have like neighbours become one stack with the sum of their
states, so a fan-out over a thousand items stays readable. A page whose content security policy forbids inline
styles allows `STYLE` by its hash or puts it into its own style sheet.
"""

from __future__ import annotations

from pipelines.definition import PipelineDefinition
from pipelines.looks import DARK, LIGHT, LOOKS, RULES, STYLE, TONES
from pipelines.picture.arranging import MARGIN, arranged
from pipelines.picture.cells import boxes_of
from pipelines.picture.edges import drawn_edges
from pipelines.picture.lettering import safe
from pipelines.picture.nodes import drawn_node
from pipelines.picture.states import Counts, States, StepPicture

__all__ = ("DARK", "LIGHT", "LOOKS", "RULES", "STYLE", "TONES", "Counts", "States", "StepPicture", "draw")


def draw(
    definition: PipelineDefinition,
    states: States | None,
    *,
    title: str,
    dark: bool = False,
    counts: Counts | None = None,
    styled: bool = True,
) -> str:
    """The picture as SVG text: the plan, or with states, the run. `dark` is for pages that are always dark, and what is not `styled` is for
    pages whose own style sheet has the `RULES`.

    A step with `counts` is one box with the sum of its branches. Bounded in time and size: of more than 8,000 lines it draws that many
    and says how many are missing.
    """
    cells = arranged(boxes_of(definition, states, counts or {}))
    width = max(cell.right for cell in cells) + MARGIN
    height = max(cell.y + cell.height / 2 for cell in cells) + MARGIN
    size = f'width="{width:.0f}" height="{height:.0f}"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="pipeline-picture{" dark" * dark}" role="group"'
        f' aria-label="{safe(title)}" {size} viewBox="0 0 {width:.0f} {height:.0f}">'
        f"<title>{safe(title)}</title>{f'<style>{STYLE}</style>' * styled}"
        f'<rect class="canvas" {size} rx="12"/>{"".join(drawn_edges(cells))}{"".join(map(drawn_node, cells))}</svg>'
    )
