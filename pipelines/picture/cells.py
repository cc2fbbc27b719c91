"""Cells of a picture: a step, a stack of equal steps, or the passage of a long edge through a layer."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from pipelines.definition import PipelineDefinition, StepDefinition
from pipelines.graph import Graph
from pipelines.looks import LOOKS, TONES
from pipelines.picture.states import Counts, States, StepPicture

STACK_ABOVE = 12  # so many equal steps side by side still fit on a screen
WIDTH = 220.0


@dataclass(eq=False, slots=True)
class Cell:
    """`x` is its left edge, `y` its middle. A passage has no steps, and the tone of the edge's source."""

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
        """Where its edges leave it."""
        return self.x + WIDTH + max(12 * self.gated, 10 * (self.number > 1))


def boxes_of(definition: PipelineDefinition, states: States | None, counts: Counts) -> list[Cell]:
    """The boxes in the order of the definition, each with the boxes before it."""
    graph = Graph.of(definition)
    layer_of = {step: layer for layer, members in enumerate(graph.layers()) for step in members}
    alike = graph.alike({step.id: _shape(step) for step in definition.steps})
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
    looks = {look_of(picture) for picture in pictures}
    tone = next(tone for tone in TONES if any(look[0] == tone for look in looks))
    return Cell(layer, tone, steps, pictures, 66 + (12 + 16 * (len(looks) > 2)) * (len(pictures) > 1))


def look_of(picture: StepPicture) -> tuple[str, str, str]:
    return LOOKS.get(picture.status) or ("idle", "dots", picture.status.replace("_", " ").capitalize())
