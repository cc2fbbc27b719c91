"""The example files are what they say: each loads, and the one with conditions and a fan-out does what its comments say."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
import yaml
from django.core.management import call_command

from pipelines.submission import NewRun, start_run
from tenants.models import Tenant
from tests.engine import Engine
from tests.flows import BROKEN, Flow, answering

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "examples" / "pipelines").glob("*.yaml"))
ROLES = ["topic-researcher", "blog-writer", "report-writer", "landing-page-writer"]
TOPICS = [{"name": "bees", "weight": 5}, {"name": "weather", "weight": 1}, {"name": "hives", "weight": 3}]


@pytest.fixture
def engine(database: None) -> Iterator[Engine]:
    running = Engine(ROLES)
    yield running
    running.close()


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_every_example_is_loaded_from_its_file(acme: Tenant, file: Path) -> None:
    told = io.StringIO()

    call_command("load_pipeline", str(file), stdout=told)

    assert told.getvalue() == f"pipeline {file.stem} version 1\n"


class Loaded(Flow):
    """A run of the example."""

    def __init__(self, engine: Engine, tenant: Tenant, **new: Any) -> None:
        self.engine, self.tenant = engine, tenant
        call_command("load_pipeline", str(ROOT / "examples/pipelines/topic-pages.yaml"), stdout=io.StringIO())
        self.id: UUID = start_run(tenant.pk, "topic-pages", NewRun(**new), actor="test").pk


@pytest.mark.parametrize(
    ("words", "chosen", "left_out"), [(700, "shorten", "keep"), (300, "keep", "shorten")]
)
def test_the_topics_that_matter_are_written_joined_and_finished_in_one_of_two_ways(
    engine: Engine, acme: Tenant, words: int, chosen: str, left_out: str
) -> None:
    flow = Loaded(engine, acme, params={"tone": "warm"}).drain(
        plan={"topics": TOPICS},
        write=lambda request: request.params["item"]["name"],
        collect={"words": words},
    )

    assert flow.outcome == ("completed", 0)
    assert [call.params for call in flow.told("write")] == [
        {
            "least_weight": 3,
            "most_words": 500,
            "tone": "warm",
            "words": 300,
            "item": item,
            "item_index": index,
        }
        for index, item in ((0, TOPICS[0]), (2, TOPICS[2]))
    ]
    assert flow.told("collect")[0].input["data"] == {"write": ["bees", "hives"]}
    assert (flow.states[chosen], flow.states[left_out]) == ("done", "skipped")
    assert flow.row(left_out).reason == "condition"
    assert flow.told("publish")[0].input["content"] == f"{chosen}: done"


def test_a_page_that_fails_holds_nobody_up(engine: Engine, acme: Tenant) -> None:
    flow = Loaded(engine, acme)
    flow.engine.agent.behaviour = answering(
        {
            "plan": {"topics": TOPICS},
            "write": lambda request: BROKEN if request.params["item_index"] == 0 else "hives",
            "collect": {"words": 1},
        }
    )

    flow.drain()

    assert flow.states["write"] == "failed"
    assert flow.told("collect")[0].input["data"] == {"write": [None, "hives"]}
    assert flow.outcome == ("completed", 0)


def test_the_reference_shows_files_that_are_accepted(acme: Tenant, tmp_path: Path) -> None:
    shown = re.findall(
        r"```yaml\n(.*?)```", (ROOT / "docs" / "pipelines.md").read_text(encoding="utf-8"), re.DOTALL
    )
    whole = [text for text in shown if "key" in yaml.safe_load(text)]
    assert whole

    for number, text in enumerate(whole):
        file = tmp_path / f"{number}.yaml"
        file.write_text(text, encoding="utf-8")
        call_command("load_pipeline", str(file), stdout=io.StringIO())
