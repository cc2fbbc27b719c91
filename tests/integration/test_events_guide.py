"""The guide to events and webhooks does what it says: its requests are sent as they stand there, and its kinds are those of the code."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import orjson

from tenants.models import Tenant
from tenants.models.events import MEANINGS
from tests.integration.test_events import happens

GUIDE = (Path(__file__).resolve().parents[2] / "docs" / "events-and-webhooks.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```http\n(.*?)^```", GUIDE, re.MULTILINE | re.DOTALL)


def test_every_request_of_the_guide_works(api: Any, tenant: Tenant, settings: Any) -> None:
    settings.ORCHESTRATOR_EGRESS_ALLOW = ("hooks.example.com:443",)
    happens(tenant, 3)
    client = api("admin")

    for block in BLOCKS:
        found = re.fullmatch(r"([A-Z]+) (\S+)\n(?:Accept: (\S+)\n)?(.*?)-> (\d+)\n", block, re.DOTALL)
        assert found, block
        method, address, accept, body, status = found.groups()
        given = [orjson.loads(body)] if body.strip() else []
        answer = getattr(client, method.lower())(
            address, *given, headers={"Accept": accept or "application/json"}
        )
        assert answer.status_code == int(status), (block, answer)
        answer.close()

    assert len(BLOCKS) >= 7


def test_the_guide_names_every_kind_with_its_meaning() -> None:
    told = dict(re.findall(r"^\| `([a-z_.]+)` \| (.+) \|$", GUIDE, re.MULTILINE))

    assert {kind: told.get(kind) for kind in MEANINGS} == MEANINGS
