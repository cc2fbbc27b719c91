"""The examples of docs/mailboxes.md, run in their order."""

from __future__ import annotations

import re
from typing import Any

from tenants.models import Tenant
from tests.architecture import tree
from tests.integration.test_money_document import asked

BLOCKS = re.findall(
    r"^```sh\n(.+?)^```",
    (tree.ROOT / "docs" / "mailboxes.md").read_text(encoding="utf-8"),
    re.MULTILINE | re.DOTALL,
)
EXAMPLES = [command for block in BLOCKS for command in re.split(r"\n(?=curl )", block.replace("\\\n", " "))]


def test_the_examples_do_what_they_say(api: Any, tenant: Tenant) -> None:
    client, known, answers = api(), {"HOST": ""}, []

    for command in EXAMPLES:
        method, address, headers, body = asked(command, known)
        assert headers.pop("Authorization") == "Bearer $TOKEN"
        answer = client.generic(method, address, body, headers.pop("Content-Type", ""), headers=headers)
        answers.append(answer)
        told = answer.json()
        known |= {"BATCH": told["batch_id"]} if "batch_id" in told else {}
        known |= {"SUBAGENT": told["subagent_id"]} if "subagent_id" in told else {}

    assert [answer.status_code for answer in answers] == [
        201,
        201,
        200,
        200,
        200,
        200,
        200,
        200,
        200,
        200,
        201,
        200,
        200,
        200,
    ]
    assert answers[2].json()["merged_count"] == 2
    assert len(answers[7].json()["results"]) == 2
    assert answers[-1].json()["status"] == "cancelled"
