"""The requests in docs/events-and-webhooks.md work unchanged, and it lists every kind of event."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import orjson

from tenants.models import Tenant
from tenants.models.events import MEANINGS
from tests.integration.test_events import raise_events

GUIDE = (Path(__file__).resolve().parents[2] / "docs" / "events-and-webhooks.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```http\n(.*?)^```", GUIDE, re.MULTILINE | re.DOTALL)


def test_every_request_of_the_guide_works(api: Any, tenant: Tenant, settings: Any) -> None:
    settings.ORCHESTRATOR_EGRESS_ALLOW = ("hooks.example.com:443",)
    raise_events(tenant, 3)
    client = api("admin")

    for block in BLOCKS:
        match = re.fullmatch(r"([A-Z]+) (\S+)\n(?:Accept: (\S+)\n)?(.*?)-> (\d+)\n", block, re.DOTALL)
        assert match, block
        method, address, accept, body, status = match.groups()
        bodies = [orjson.loads(body)] if body.strip() else []
        answer = getattr(client, method.lower())(
            address, *bodies, headers={"Accept": accept or "application/json"}
        )
        assert answer.status_code == int(status), (block, answer)
        answer.close()

    assert len(BLOCKS) >= 7


def test_the_guide_names_every_kind_with_its_meaning() -> None:
    documented = dict(re.findall(r"^\| `([a-z_.]+)` \| (.+) \|$", GUIDE, re.MULTILINE))

    assert {kind: documented.get(kind) for kind in MEANINGS} == MEANINGS
