"""The curl commands of documents, run in their order."""

from __future__ import annotations

import re
import shlex
from datetime import timedelta
from typing import Any

from activities import bulk_jobs
from tenants import clock
from tenants.models import Tenant
from tests.architecture import tree
from tests.engine import Engine


def commands_of(document: str) -> list[str]:
    text = (tree.ROOT / "docs" / document).read_text(encoding="utf-8")
    blocks = re.findall(r"^```sh\n(.+?)^```", text, re.MULTILINE | re.DOTALL)
    return [command for block in blocks for command in re.split(r"\n(?=curl )", block.replace("\\\n", " "))]


def send(client: Any, command: str, variables: dict[str, str], **headers: str) -> Any:
    """Send the request of a curl command with these shell variables; `headers` replace its own."""
    method, address, body = "GET", "", ""
    sent: dict[str, str] = {}
    words = iter(shlex.split(command)[1:])
    for word in words:
        if word == "-X":
            method = next(words)
        elif word == "-H":
            name, _, value = next(words).partition(": ")
            sent[name] = headers.get(name.replace("-", "_"), value)
        elif word == "-d":
            body = next(words)
        elif word != "-s":
            address = re.sub(r"\$(\w+)", lambda match: variables[match[1]], word)
    if body:
        sent.setdefault("Content-Type", "application/x-www-form-urlencoded")  # as curl does
    assert sent.pop("Authorization") == "Bearer $TOKEN"
    return client.generic(method, address, body, sent.pop("Content-Type", ""), headers=sent)


def test_the_commands_of_the_document_about_money_work(api: Any, tenant: Tenant) -> None:
    client, variables, answers = api(), {"HOST": ""}, []

    for command in commands_of("money.md"):
        answers.append(send(client, command, variables))
        if answers[-1].status_code == 201:
            variables["BUDGET"] = answers[-1].json()["id"]

    assert [answer.status_code for answer in answers] == [200, 200, 201, 200, 200, 204]
    assert [answer.json()["cap"] for answer in answers if answer.wsgi_request.method == "PUT"] == ["50"]


def test_the_commands_of_the_document_about_mailboxes_work(api: Any, tenant: Tenant) -> None:
    client, variables, answers = api(), {"HOST": ""}, []

    for command in commands_of("mailboxes.md"):
        answers.append(send(client, command, variables))
        ids = answers[-1].json()
        variables |= {
            name: ids[member]
            for name, member in (("BATCH", "batch_id"), ("SUBAGENT", "subagent_id"))
            if member in ids
        }

    assert [answer.status_code for answer in answers] == [
        201, 201, 200, 200, 200, 200, 200, 200, 200, 200, 201, 200, 200, 200,
    ]  # fmt: skip
    assert answers[2].json()["merged_count"] == 2
    assert len(answers[7].json()["results"]) == 2
    assert answers[-1].json()["status"] == "cancelled"


def test_the_commands_of_the_document_about_the_api_work(api: Any, engine: Engine, tenant: Tenant) -> None:
    client, answers = api(), list[tuple[int, Any]]()
    engine.serve(tenant, "seo")
    (later,) = engine.submit(tenant, "seo", not_before=clock.now() + timedelta(days=1))
    variables = {"HOST": "", "ACTIVITY": str(later), "ETAG": ""}

    for command in commands_of("http-api.md"):
        answer = send(client, command, variables, If_Match=variables["ETAG"])
        answers.append((answer.status_code, answer.json()))
        if "Idempotency-Key" in command:
            variables |= {"ID": answer.json()["id"], "ETAG": answer["ETag"]}
        elif answer.status_code == 200 and "-X POST" in command and "cancel/" in command:
            engine.submit(tenant)  # something for the bulk job
        elif answer.status_code == 202:
            variables["JOB"] = answer.json()["id"]
            bulk_jobs.work()
            (finished,) = engine.submit(tenant, "seo")
            engine.drain()
            variables |= {"ID": str(finished), "RUN": str(engine.runs(tenant, finished)[0].pk)}

    assert [status for status, _ in answers] == [200, 200, 201, 200, 200, 200, 202, 200, 200, 200, 200]
    assert answers[3][1]["cancel_reason"] == "Ordered twice."
    assert (answers[4][1]["priority"], answers[4][1]["not_before"]) == (1, None)
    assert answers[5][1]["count"] == 1
    assert (answers[7][1]["status"], answers[7][1]["done"]) == ("completed", 1)
    assert answers[8][1]["results"] == []
    assert answers[9][1]["results"] == answers[10][1]["results"] == []
