"""The example pipelines and those of docs/pipelines.md can be loaded, and topic-pages.yaml does what its comments say."""

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
from tests.flows import BROKEN, Flow, answer_by_step

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
def test_every_example_can_be_loaded(acme: Tenant, file: Path) -> None:
    output = io.StringIO()

    call_command("load_pipeline", str(file), stdout=output)

    assert output.getvalue() == f"pipeline {file.stem} version 1\n"


class ExampleRun(Flow):
    """A run of topic-pages.yaml."""

    def __init__(self, engine: Engine, tenant: Tenant, **new: Any) -> None:
        self.engine, self.tenant = engine, tenant
        call_command("load_pipeline", str(ROOT / "examples/pipelines/topic-pages.yaml"), stdout=io.StringIO())
        self.id: UUID = start_run(tenant.pk, "topic-pages", NewRun(**new), actor="test").pk


@pytest.mark.parametrize(("words", "done", "skipped"), [(700, "shorten", "keep"), (300, "keep", "shorten")])
def test_important_topics_are_written_and_joined_and_one_of_two_steps_follows(
    engine: Engine, acme: Tenant, words: int, done: str, skipped: str
) -> None:
    flow = ExampleRun(engine, acme, params={"tone": "warm"}).drain(
        plan={"topics": TOPICS},
        write=lambda request: request.params["item"]["name"],
        collect={"words": words},
    )

    assert flow.outcome == ("completed", 0)
    assert [call.params for call in flow.calls_of_step("write")] == [
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
    assert flow.calls_of_step("collect")[0].input["data"] == {"write": ["bees", "hives"]}
    assert (flow.states[done], flow.states[skipped]) == ("done", "skipped")
    assert flow.row(skipped).reason == "condition"
    assert flow.calls_of_step("publish")[0].input["content"] == f"{done}: done"


def test_a_failed_page_does_not_stop_the_others(engine: Engine, acme: Tenant) -> None:
    flow = ExampleRun(engine, acme)
    flow.engine.agent.behaviour = answer_by_step(
        {
            "plan": {"topics": TOPICS},
            "write": lambda request: BROKEN if request.params["item_index"] == 0 else "hives",
            "collect": {"words": 1},
        }
    )

    flow.drain()

    assert flow.states["write"] == "failed"
    assert flow.calls_of_step("collect")[0].input["data"] == {"write": [None, "hives"]}
    assert flow.outcome == ("completed", 0)


def test_the_complete_files_in_the_document_can_be_loaded(acme: Tenant, tmp_path: Path) -> None:
    snippets = re.findall(
        r"```yaml\n(.*?)```", (ROOT / "docs" / "pipelines.md").read_text(encoding="utf-8"), re.DOTALL
    )
    files = [text for text in snippets if "key" in yaml.safe_load(text)]
    assert files

    for number, text in enumerate(files):
        file = tmp_path / f"{number}.yaml"
        file.write_text(text, encoding="utf-8")
        call_command("load_pipeline", str(file), stdout=io.StringIO())
