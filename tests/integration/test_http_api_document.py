"""The examples of docs/http-api.md, run in their order."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

from activities import bulk_jobs
from tenants import clock
from tenants.models import Tenant
from tests.architecture import tree
from tests.engine import Engine
from tests.integration.test_money_document import asked

TEXT = (tree.ROOT / "docs" / "http-api.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```sh\n(.+?)^```", TEXT, re.MULTILINE | re.DOTALL)
EXAMPLES = [command for block in BLOCKS for command in re.split(r"\n(?=curl )", block.replace("\\\n", " "))]


def test_the_examples_do_what_they_say(api: Any, engine: Engine, tenant: Tenant) -> None:
    client, found = api(), list[tuple[int, Any]]()
    engine.serve(tenant, "seo")
    later = engine.submit(tenant, "seo", not_before=clock.now() + timedelta(days=1))[0]
    known = {"HOST": "", "ACTIVITY": str(later)}

    for command in EXAMPLES:
        method, address, headers, body = asked(command, known)
        assert headers.pop("Authorization") == "Bearer $TOKEN"
        if "If-Match" in headers:
            headers["If-Match"] = known["ETAG"]
        answer = client.generic(method, address, body, headers.pop("Content-Type", ""), headers=headers)
        found.append((answer.status_code, answer.json()))
        if "Idempotency-Key" in headers:
            known |= {"ID": answer.json()["id"], "ETAG": answer["ETag"]}
        elif answer.status_code == 200 and method == "POST" and "cancel/" in address:
            engine.submit(tenant)  # something for the bulk job
        elif answer.status_code == 202:
            known["JOB"] = answer.json()["id"]
            bulk_jobs.work()
            (watched,) = engine.submit(tenant, "seo")
            engine.drain()
            known |= {"ID": str(watched), "RUN": str(engine.runs(tenant, watched)[0].pk)}

    assert [status for status, _ in found] == [200, 200, 201, 200, 200, 200, 202, 200, 200, 200, 200]
    assert found[3][1]["cancel_reason"] == "Ordered twice."
    assert (found[4][1]["priority"], found[4][1]["not_before"]) == (1, None)
    assert found[5][1]["count"] == 1
    assert (found[7][1]["status"], found[7][1]["done"]) == ("completed", 1)
    assert found[8][1]["results"] == []
    assert found[9][1]["results"] == found[10][1]["results"] == []
