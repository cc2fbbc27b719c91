"""The examples of the README run as they stand, one after the other, against the real server and agents that work."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from django.db import connections
from tenants.models import Tenant
from tests.engine import Engine

from orchestrator_client import Client

README = (Path(__file__).resolve().parents[1] / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python( no-run)?\n(.*?)^```", README, re.MULTILINE | re.DOTALL)


@pytest.fixture
def working(engine: Engine, tenant: Tenant) -> Iterator[None]:
    """A worker in another thread: it takes messages until the test is over."""
    engine.serve(tenant)
    over = threading.Event()

    def work() -> None:
        while not over.wait(0.05):
            engine.drain()
        connections.close_all()

    thread = threading.Thread(target=work)
    thread.start()
    yield
    over.set()
    thread.join()


def test_the_readme_names_every_group_of_operations() -> None:
    listed = README.partition("grouped as in the API:")[2].partition(". ")[0]
    with Client("http://nowhere.invalid", "token") as client:
        groups = {name for name in vars(client) if not name.startswith("_")}

    assert set(re.findall(r"`(?:client\.)?(\w+)`", listed)) == groups


def test_the_examples_run_as_they_stand(
    server: str,
    token_of: Callable[..., str],
    working: None,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("URL", server)
    monkeypatch.setenv("TOKEN", token_of())
    names: dict[str, Any] = {}

    for kind, example in BLOCKS:
        code = compile(example, "README.md", "exec")
        if not kind:
            exec(code, names)

    told = capsys.readouterr().out
    for line in (
        "done Audit the start page: done",
        "Read it again, look, and decide again.",
        "['done', 'done', 'done']",
        "(401, ",
        "message {'said': 'done'}",
        "2 ['Have a look at page two.', 'And at page three.'] 0",
        "compared=1, equal=1",
    ):
        assert line in told
    names["client"].close()


def test_every_example_is_python() -> None:
    assert len(BLOCKS) > 10
    assert README.count("```") == 2 * len(BLOCKS)
