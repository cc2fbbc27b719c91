"""Runs the commands and requests of the guide to agents, in their order."""

from __future__ import annotations

import io
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest
from django.core.management import call_command

from agents.models import Agent
from tenants.models import Tenant

GUIDE = (Path(__file__).resolve().parents[2] / "docs" / "agents.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(console|http)\n(.*?)^```", GUIDE, re.MULTILINE | re.DOTALL)


@pytest.fixture(autouse=True)
def remove_the_agent(database: None, settings: Any) -> Iterator[None]:
    settings.ORCHESTRATOR_EGRESS_ALLOW = ("agents.example.com:443",)
    yield
    Agent.objects.filter(role="headline-writer").delete()


def run(block: str) -> None:
    """Run the commands after `$` and compare their output with the following lines; without such lines any output will do."""
    for command, expected in re.findall(
        r"^\$ python manage\.py (.+)\n((?:(?!\$).*\n)*)", block, re.MULTILINE
    ):
        out = io.StringIO()
        call_command(*shlex.split(command), stdout=out)
        assert out.getvalue() == expected or (not expected and out.getvalue()), command


def send(client: Any, block: str) -> None:
    """Send a request with its body, if any, and compare the status of the answer with the one after `->`."""
    match = re.fullmatch(r"([A-Z]+) (\S+)\n(.*?)-> (\d+)\n", block, re.DOTALL)
    assert match, block
    method, address, body, status = match.groups()
    answer = getattr(client, method.lower())(address, *([orjson.loads(body)] if body.strip() else []))
    assert answer.status_code == int(status), (block, answer.content)


def test_every_command_and_request_of_the_guide_works(api: Any, tenant: Tenant) -> None:
    client = api(platform=True)

    for kind, block in BLOCKS:
        if kind == "console":
            run(block)
        else:
            send(client, block)

    assert len(BLOCKS) >= 10
    assert not Agent.objects.filter(role="headline-writer").exists()
