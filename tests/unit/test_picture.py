"""The picture of a pipeline shows all its steps and states, and no text can break out of it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.definition import PipelineDefinition, parse
from pipelines.diagram import (
    DARK,
    LIGHT,
    MOST_LINKS,
    SMALLEST,
    STATUS_STYLES,
    STYLE,
    TONES,
    StepPicture,
    draw,
)

steady = settings(deadline=None, derandomize=True, max_examples=50)
SVG = "{http://www.w3.org/2000/svg}"
HOSTILE = '"/><script>alert(1)</script>\u202e\x00\x1b]]>&amp;<!--\ud800'


def agent(id_: str, *depends_on: str, **more: Any) -> dict[str, Any]:
    return {"id": id_, "agent_role": "writer", "depends_on": list(depends_on), **more}


def pipeline(*steps: dict[str, Any]) -> PipelineDefinition:
    roles = [step["agent_role"] for step in steps if "agent_role" in step]
    return parse(
        {"key": "k", "name": "N", "steps": list(steps)}, known_roles=roles, known_templates=["audit"]
    )


@dataclass(frozen=True)
class Box:
    """Place, text and tone of a step in the picture."""

    x: float
    y: float
    width: float
    height: float
    words: str
    tone: str

    @property
    def middle(self) -> float:
        return self.y + self.height / 2


def numbers_in(text: str | None) -> list[float]:
    return [float(number) for number in re.findall(r"-?\d+(?:\.\d+)?", text or "")]


def boxes_in(svg: str) -> list[Box]:
    boxes = []
    for group in ElementTree.fromstring(svg).iter(f"{SVG}g"):
        x, y = numbers_in(group.get("transform"))
        front = [rect for rect in group.findall(f"{SVG}rect") if rect.get("class") == "box"][-1]
        words = " | ".join(text.text or "" for text in group.findall(f"{SVG}text"))
        width, height = float(front.get("width", 0)), float(front.get("height", 0))
        boxes.append(Box(x, y, width, height, words, group.get("class", "")))
    return boxes


def edges_in(svg: str) -> Iterator[tuple[str, list[float]]]:
    for path in ElementTree.fromstring(svg).iter(f"{SVG}path"):
        if (path.get("class") or "").startswith("edge "):
            yield path.get("class", ""), numbers_in(path.get("d"))


@st.composite
def pipelines(draw: st.DrawFn) -> PipelineDefinition:
    """Draw graphs of up to a dozen steps, no two of which could be stacked."""
    ids = [f"s{number}" for number in range(draw(st.integers(1, 12)))]
    steps = []
    for place, name in enumerate(ids):
        before = draw(st.lists(st.sampled_from(ids[:place]), unique=True, max_size=3)) if place else []
        steps.append(agent(name, *before, agent_role=f"role-{place}", requires_approval=draw(st.booleans())))
    return pipeline(*steps)


# ---- What it shows


def test_a_box_shows_name_role_state_and_detail() -> None:
    definition = pipeline(
        agent("a", name="Research"), {"id": "b", "human_role": "editor", "depends_on": ["a"]}
    )
    states = {"a": StepPicture("done", "12.4 s"), "b": StepPicture("awaiting_review", round=3)}

    boxes = boxes_in(draw(definition, states, title="T"))

    assert [box.words for box in boxes] == [
        "Research | writer | Done \u00b7 12.4 s",
        "b | editor | Needs a review | round 3",
    ]
    assert [box.tone for box in boxes] == ["good", "ask"]


def test_a_plan_shows_no_states() -> None:
    (box,) = boxes_in(draw(pipeline(agent("a", when="x", for_each="y")), None, title="T"))

    assert (box.words, box.tone) == ("a | writer | each | if", "plan")


def test_a_step_without_a_state_is_waiting() -> None:
    (box,) = boxes_in(draw(pipeline(agent("a")), {}, title="T"))

    assert box.words.endswith("Waiting")


def test_states_differ_by_their_words_and_unknown_states_keep_theirs() -> None:
    looks = set(STATUS_STYLES.values())

    assert len({words for _, _, words in looks}) == len(looks)
    svg = draw(pipeline(agent("a")), {"a": StepPicture("something_new")}, title="T")
    assert "Something new" in boxes_in(svg)[0].words


def test_only_steps_with_an_approval_have_the_mark_of_a_gate() -> None:
    gate = {"id": "c", "human_role": "editor", "is_approval_gate": True}
    definition = pipeline(agent("a"), agent("b", requires_approval=True), gate)

    groups = ElementTree.fromstring(draw(definition, None, title="T")).iter(f"{SVG}g")

    gated = [any(path.get("class") == "gate" for path in group.iter(f"{SVG}path")) for group in groups]
    assert gated == [False, True, True]


def test_a_long_name_is_cut_and_its_tooltip_has_the_full_name() -> None:
    name = "Technical audit of every single page below the home page"
    svg = draw(pipeline(agent("a", name=name)), None, title="T")

    label = boxes_in(svg)[0].words.partition(" | ")[0]
    assert label.endswith("\u2026")
    assert name.startswith(label.rstrip("\u2026"))
    assert f"<title>{name} \u00b7 writer</title>" in svg


def test_a_box_has_its_link_unless_the_link_would_run_a_script() -> None:
    links = (
        "/runs/1/",
        "?step=a",
        "#a",
        "https://example.org/x",
        "javascript:alert(1)",
        "//evil.example",
        "/\\evil",
    )
    definition = pipeline(*(agent(f"s{number}") for number in range(len(links))))
    states = {f"s{number}": StepPicture(href=href) for number, href in enumerate(links)}

    root = ElementTree.fromstring(draw(definition, states, title="T"))

    assert tuple(link.get("href") for link in root.iter(f"{SVG}a")) == links[:4]


# ---- Stacks


def fan_out(width: int, **more: Any) -> PipelineDefinition:
    items = [agent(f"item-{number:04d}", "split", **more) for number in range(width)]
    return pipeline(agent("split"), *items, agent("join", *(item["id"] for item in items)))


def test_a_dozen_equal_steps_are_drawn_side_by_side_and_one_more_makes_a_stack() -> None:
    assert len(boxes_in(draw(fan_out(12), None, title="T"))) == 14

    stack = boxes_in(draw(fan_out(13), None, title="T"))[1]

    assert stack.words == "item | writer | \u00d7 13"


def test_a_thousand_steps_become_one_box_with_the_sum_of_their_states() -> None:
    definition = fan_out(1000)
    states = {f"item-{number:04d}": StepPicture("done") for number in range(900)}
    states |= {f"item-{number:04d}": StepPicture("in_progress") for number in range(900, 990)}
    states |= {"item-0990": StepPicture("failed", round=2)}

    svg = draw(definition, states, title="T")

    boxes = boxes_in(svg)
    assert len(boxes) == 3
    assert boxes[1].words == (
        "item | writer | 1 failed \u00b7 90 running | 9 waiting \u00b7 900 done | \u00d7 1,000 | round 2"
    )
    assert boxes[1].tone == "bad"
    assert "and 988 more" in svg
    assert len(svg) < 10_000


def test_steps_that_differ_are_not_stacked() -> None:
    items = [agent(f"i{number}", "split", agent_role=f"role-{number}") for number in range(20)]

    assert len(boxes_in(draw(pipeline(agent("split"), *items), None, title="T"))) == 21


def test_equal_chains_are_stacked_link_by_link() -> None:
    first = [agent(f"a{number}") for number in range(20)]
    second = [agent(f"b{number}", f"a{number}", agent_role="reviewer") for number in range(20)]

    svg = draw(pipeline(*first, *second), None, title="T")

    assert [box.words for box in boxes_in(svg)] == ["a | writer | \u00d7 20", "b | reviewer | \u00d7 20"]
    assert len(list(edges_in(svg))) == 1


# ---- Arrangement


@steady
@given(pipelines())
def test_work_flows_from_left_to_right_and_nothing_overlaps(definition: PipelineDefinition) -> None:
    svg = draw(definition, None, title="T")

    boxes = boxes_in(svg)
    width, height = numbers_in(ElementTree.fromstring(svg).get("viewBox"))[2:]
    box_of = {box.words.partition(" | ")[0]: box for box in boxes}
    assert len(box_of) == len(definition.steps)
    for step in definition.steps:
        assert all(box_of[before].x + box_of[before].width < box_of[step.id].x for before in step.depends_on)
    for one, other in combinations(boxes, 2):
        apart_x = one.x + one.width < other.x or other.x + other.width < one.x
        apart_y = one.y + one.height < other.y or other.y + other.height < one.y
        assert apart_x or apart_y
    for box in boxes:
        assert box.x >= 0 <= box.y
        assert box.x + box.width <= width
        assert box.y + box.height <= height


@steady
@given(pipelines())
def test_long_edges_pass_between_the_boxes_and_every_edge_arrives(definition: PipelineDefinition) -> None:
    svg = draw(definition, None, title="T")

    boxes = boxes_in(svg)
    arrived = set()
    for _, numbers in edges_in(svg):
        y, end = (numbers[1], numbers[2]) if len(numbers) == 3 else (numbers[7], numbers[8])
        begin = numbers[0] if len(numbers) == 3 else numbers[6]
        for box in boxes:
            within = box.y < y < box.y + box.height
            assert not (within and begin < box.x + box.width and end > box.x)
            if abs(end - box.x) <= 8 and abs(y - box.middle) < 0.6:
                arrived.add(box)
    expected = {step.id for step in definition.steps if step.depends_on}
    assert {box.words.partition(" | ")[0] for box in arrived} == expected


def test_a_chain_is_a_straight_line() -> None:
    svg = draw(pipeline(agent("a"), agent("b", "a"), agent("c", "b")), None, title="T")

    assert len({box.middle for box in boxes_in(svg)}) == 1
    assert all(len(numbers) == 3 for _, numbers in edges_in(svg))


def test_an_edge_has_the_tone_of_the_step_it_leaves() -> None:
    definition = pipeline(agent("a"), agent("b"), agent("c"), agent("end", "a", "b", "c"))
    states = {"a": StepPicture("done"), "b": StepPicture("failed"), "c": StepPicture("skipped")}

    svg = draw(definition, states, title="T")

    assert sorted(tone for tone, _ in edges_in(svg)) == ["edge bad", "edge good", "edge off"]
    assert 'class="head bad"' in svg


def test_too_many_edges_are_replaced_by_a_count() -> None:
    layers = [[f"s{layer}-{number}" for number in range(70)] for layer in range(3)]
    steps = [agent(name, agent_role=f"r{name}") for name in layers[0]]
    steps += [agent(name, *layers[0], agent_role=f"r{name}") for name in layers[1]]
    steps += [agent(name, *layers[1], agent_role=f"r{name}") for name in layers[2]]

    svg = draw(pipeline(*steps), None, title="T")

    assert len(list(edges_in(svg))) == MOST_LINKS
    assert f"Lines that are not drawn: {2 * 70 * 70 - MOST_LINKS:,}." in svg


# ---- Safety and looks


@steady
@given(st.text(max_size=60), st.text(max_size=60), st.text(max_size=60))
def test_any_text_gives_a_well_formed_picture(status: str, detail: str, title: str) -> None:
    svg = draw(pipeline(agent("a")), {"a": StepPicture(status, detail, href=title)}, title=title)

    svg.encode()
    assert len(boxes_in(svg)) == 1


def test_hostile_text_stays_text() -> None:
    safe = HOSTILE.replace("\x00", "").replace("\ud800", "")
    name = re.sub("[\u202e\x1b]", "", safe)  # names may not contain these either
    step = {"id": "a", "human_role": name, "name": name, "when": safe, "for_each": safe}
    states = {"a": StepPicture(HOSTILE, HOSTILE, HOSTILE)}

    svg = draw(pipeline(step), states, title=HOSTILE)

    tags = {element.tag.removeprefix(SVG) for element in ElementTree.fromstring(svg).iter()}
    assert tags == {"svg", "title", "style", "rect", "g", "path", "text", "circle"}
    assert not re.search(r"[\u202e\x00\x1b\ud800]", svg)
    assert "<script" not in svg


def test_a_picture_fetches_and_runs_nothing() -> None:
    svg = draw(fan_out(20), {"split": StepPicture("done", "1 s", "/x")}, title="T")

    assert not re.search(r"url\(|@import|@font-face|<image|<use|xlink|\son\w+=|javascript:|data:", svg)
    assert re.findall(r"https?://[^\"]*", svg) == ["http://www.w3.org/2000/svg"]


def test_the_same_pipeline_is_always_drawn_the_same() -> None:
    assert draw(fan_out(5), {}, title="T") == draw(fan_out(5), {}, title="T")


def test_the_browser_chooses_light_or_dark_unless_the_page_sets_dark() -> None:
    definition = pipeline(agent("a"))

    assert f"@media(prefers-color-scheme:dark){{.pipeline-picture{{{DARK}}}}}" in STYLE
    assert STYLE in draw(definition, None, title="T")
    assert 'class="pipeline-picture"' in draw(definition, None, title="T")
    assert 'class="pipeline-picture dark"' in draw(definition, None, title="T", dark=True)


def test_style_rules_apply_only_inside_the_picture() -> None:
    rules = re.sub(r"@media\([^)]*\)\{(.*?\})\}", r"\1", STYLE)

    for selectors, _ in re.findall(r"([^{}]+)\{([^{}]*)\}", rules):
        assert all(selector.strip().startswith(".pipeline-picture") for selector in selectors.split(","))


def luminance(colour: str) -> float:
    digits = colour.lstrip("#")
    digits = "".join(2 * digit for digit in digits) if len(digits) == 3 else digits
    parts = [int(digits[place : place + 2], 16) / 255 for place in (0, 2, 4)]
    red, green, blue = (
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize("theme", [LIGHT, DARK], ids=["light", "dark"])
def test_every_text_has_enough_contrast(theme: str) -> None:
    colours = dict(re.findall(r"--([a-z-]+):(#[0-9a-f]+)", theme))

    for tone in TONES:
        ground = luminance(colours[f"{tone}-tint"])
        for ink in (tone, "ink", "mute"):
            low, high = sorted((ground, luminance(colours[ink])))
            assert (high + 0.05) / (low + 0.05) >= 4.5, (tone, ink)


def test_a_step_that_was_fanned_out_is_one_box_with_the_sum_of_its_branches() -> None:
    definition = pipeline(agent("list"), agent("write", "list", for_each="steps.list.data"))
    states = {"list": StepPicture("done"), "write": StepPicture("active", href="/branches")}

    svg = draw(definition, states, title="T", counts={"write": {"failed": 2, "active": 0, "done": 1_498}})

    first, many = boxes_in(svg)
    assert "\u00d7" not in first.words
    assert "\u00d7 1,500" in many.words
    assert "2 failed \u00b7 1,498 done" in many.words
    assert many.tone == "bad"
    assert '<a href="/branches">' in svg
    assert "write \u00b7 writer \u00b7 2 failed \u00b7 1,498 done" in svg


def test_a_step_whose_condition_was_false_looks_different_from_a_skipped_one() -> None:
    definition = pipeline(agent("a"), agent("b", "a", when="true"))

    unmet, skipped = (
        draw(definition, {"b": StepPicture(status)}, title="T") for status in ("condition_unmet", "skipped")
    )

    assert "Condition not met" in unmet
    assert "Condition not met" not in skipped
    assert STATUS_STYLES["condition_unmet"][1] != STATUS_STYLES["skipped"][1], "by its glyph as well"


def test_a_picture_wider_than_its_page_is_scaled_down_while_it_stays_legible() -> None:
    whole = pipeline(
        agent("step-0"), *(agent(f"step-{number}", f"step-{number - 1}") for number in range(1, 6))
    )

    def width(widest: float | None) -> float:
        match = re.search(r'<svg [^>]*? width="(\d+)"', draw(whole, None, title="t", widest=widest))
        assert match
        return float(match[1])

    natural = width(None)
    assert natural > 1000
    assert width(natural + 1) == natural
    assert abs(width(natural * 0.9) - natural * 0.9) <= 1
    assert abs(width(10) - natural * SMALLEST) <= 1
