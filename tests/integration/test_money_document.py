"""The examples of docs/money.md, run in their order."""

from __future__ import annotations

import re
import shlex
from typing import Any

from tenants.models import Tenant
from tests.architecture import tree

BLOCKS = re.findall(
    r"^```sh\n(.+?)^```",
    (tree.ROOT / "docs" / "money.md").read_text(encoding="utf-8"),
    re.MULTILINE | re.DOTALL,
)
EXAMPLES = [command for block in BLOCKS for command in re.split(r"\n(?=curl )", block.replace("\\\n", " "))]


def asked(command: str, known: dict[str, str]) -> tuple[str, str, dict[str, str], str]:
    """Method, address, headers and body of a curl command."""
    method, address, headers, body = "GET", "", {}, ""
    words = iter(shlex.split(command)[1:])
    for word in words:
        if word == "-X":
            method = next(words)
        elif word == "-H":
            name, _, value = next(words).partition(": ")
            headers[name] = value
        elif word == "-d":
            body = next(words)
        elif word != "-s":
            address = re.sub(r"\$(\w+)", lambda match: known[match[1]], word)
    if body:
        headers.setdefault("Content-Type", "application/x-www-form-urlencoded")  # as curl does
    return method, address, headers, body


def test_the_examples_do_what_they_say(api: Any, tenant: Tenant) -> None:
    client, known, statuses = api(), {"HOST": ""}, []

    for command in EXAMPLES:
        method, address, headers, body = asked(command, known)
        assert headers.pop("Authorization") == "Bearer $TOKEN"
        answer = client.generic(method, address, body, headers.pop("Content-Type", ""), headers=headers)
        statuses.append(answer.status_code)
        if method == "POST":
            known["BUDGET"] = answer.json()["id"]
        elif method == "PUT":
            assert answer.json()["cap"] == "50"

    assert statuses == [200, 200, 201, 200, 200, 204]
