"""The sample agents follow the protocol: refusals, requested failures, accepted work and signatures."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import threading
import time
from base64 import b64encode
from collections.abc import Iterator
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from queue import Queue
from typing import Any

import httpx2
import pytest

from pipelines.definition import load, parse
from tests.integration.sample_agents.desk import (
    ARTICLE,
    MEASURES,
    README,
    ROLES,
    ROOT,
    SMALL_TEXT,
    TEXT_AGENTS,
    Agents,
    Json,
    run_agents,
    sign,
)

NODE_AUDITOR = ("node", "examples/agents/node_auditor/agent.js")
SECRETS = [f"whsec_{b64encode(letter * 24).decode()}" for letter in (b"a", b"b", b"c")]


@pytest.fixture(scope="module")
def node_auditor(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Agents]:
    if shutil.which("node") is None:
        pytest.skip("node is not installed; the auditor in JavaScript needs Node 20")
    with run_agents(NODE_AUDITOR, tmp_path_factory.mktemp("node"), "--secret", SECRETS[0]) as auditor:
        yield auditor


class CallbackServer:
    """The orchestrator's side of a callback, which records reports and answers as scripted."""

    def __init__(self) -> None:
        self.reports: Queue[tuple[str, str, Json]] = Queue()
        self.logged: list[str] = []
        self.answers: Queue[tuple[int, Json]] = Queue()
        self.may_answer = threading.Event()
        self.may_answer.set()
        self.callback: Json = {"token": "run-token"}

    def report(self) -> tuple[str, str, Json]:
        return self.reports.get(timeout=20)

    def take(self, request: BaseHTTPRequestHandler) -> None:
        body = json.loads(request.rfile.read(int(request.headers["Content-Length"])))
        verb = request.path.removeprefix("/api/v1/agent-runs/42/")
        status, answer = 200, {"stop": False}
        if verb == "log/":
            self.logged += [line["text"] for line in body["lines"]]
        else:
            self.reports.put((verb, request.headers["Authorization"], body))
            self.may_answer.wait(30)
            status, answer = (status, answer) if self.answers.empty() else self.answers.get()
        request.send_response(status)
        request.end_headers()
        request.wfile.write(json.dumps(answer).encode())


@pytest.fixture
def callback_server() -> Iterator[CallbackServer]:
    callback_server = CallbackServer()
    methods = {"do_POST": lambda request: callback_server.take(request), "log_message": lambda *_: None}
    handler = type("Handler", (BaseHTTPRequestHandler,), methods)
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        callback_server.callback["url"] = f"http://127.0.0.1:{server.server_port}/api/v1/agent-runs/42/"
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield callback_server
        server.shutdown()


@pytest.mark.parametrize(
    "body", ["", "{", "[]", b"\xff", "[" * 100_000, '{"input": "x"}', '{"params": {"text": 5}}']
)
def test_a_malformed_body_is_a_400_problem_document(agents: Agents, body: str | bytes) -> None:
    response = agents.client.post("/keyword-researcher", content=body)

    assert (response.status_code, response.json()["code"]) == (400, "malformed_request")


def test_a_wrong_address_method_or_size_is_refused(agents: Agents) -> None:
    connection = HTTPConnection(agents.client.base_url.host, agents.client.base_url.port)
    connection.putrequest("POST", "/report-writer")
    connection.putheader("Content-Length", "99999999")
    connection.endheaders()

    assert connection.getresponse().status == 413
    assert agents.client.post("/report-writer", content=iter([b"{}"])).status_code == 411
    assert agents.post("no-such-role").status_code == 404
    assert agents.client.get("/report-writer").headers["Allow"] == "POST"
    assert sorted(agents.client.get("/healthz").json()["skills"]) == sorted(
        (*ROLES, "social-calendar-planner", "social-post-writer")
    )
    connection.close()


def test_requested_failures_have_the_statuses_of_the_protocol(agents: Agents) -> None:
    def answer(fail: Any) -> httpx2.Response:
        params = {"text": "Bees fly.", "fail": fail, "retry_after": 7}
        return agents.post("report-writer", job_id="flaky", params=params)

    assert [answer(kind).status_code for kind in ("retryable", "permanent", "sometimes")] == [503, 400, 400]
    assert [answer(2).status_code for _ in range(3)] == [503, 503, 200]
    assert (answer("rate_limit").status_code, answer("rate_limit").headers["Retry-After"]) == (429, "7")


def test_an_accepted_job_sends_heartbeats_and_the_result_with_its_token(
    agents: Agents, callback_server: CallbackServer
) -> None:
    params = {"text": SMALL_TEXT, "mode": "async", "delay_ms": 30, "heartbeat_ms": 20}

    accepted = agents.post("site-auditor", params=params, callback=callback_server.callback)

    reports = [callback_server.report()]
    while reports[-1][0] == "heartbeat/":
        reports.append(callback_server.report())

    assert accepted.status_code == 202
    assert (reports[-1][0], len(reports) >= 3) == ("complete/", True)
    assert {token for _, token, _ in reports} == {"Bearer run-token"}
    assert reports[-1][2]["output"]["data"]["words"] == 9
    percents = [body["progress"]["percent"] for verb, _, body in reports if verb == "heartbeat/"]
    assert (percents[0], percents == sorted(percents), 0 < percents[-1] <= 100) == (0, True, True)
    assert callback_server.logged == ["I read 15 words.", "I write it down."]


@pytest.mark.parametrize("answer", [(200, {"stop": True}), (409, {"stop": True}), (401, {})])
def test_an_accepted_job_that_is_told_to_stop_reports_nothing_more(
    agents: Agents, callback_server: CallbackServer, answer: Any
) -> None:
    agents.client.delete("/recorder")
    callback_server.answers.put(answer)
    agents.post(
        "site-auditor", params={"text": SMALL_TEXT, "mode": "async"}, callback=callback_server.callback
    )

    while agents.record_of("site-auditor")["running"]:
        time.sleep(0.01)

    assert [
        callback_server.report()[0],
        callback_server.reports.qsize(),
        agents.record_of("site-auditor")["failed"],
    ] == [
        "heartbeat/",
        0,
        1,
    ]


def test_an_accepted_job_without_text_fails_permanently(
    agents: Agents, callback_server: CallbackServer
) -> None:
    agents.post("report-writer", params={"mode": "async"}, callback=callback_server.callback)

    (first, _, _), (second, _, body) = callback_server.report(), callback_server.report()

    assert (first, second, body["error"]["retryable"]) == ("heartbeat/", "fail/", False)


def test_a_report_is_repeated_until_it_is_accepted(agents: Agents, callback_server: CallbackServer) -> None:
    callback_server.answers.put((503, {}))
    agents.post(
        "report-writer", params={"text": "Bees fly.", "mode": "async"}, callback=callback_server.callback
    )

    assert [callback_server.report()[0] for _ in range(3)] == ["heartbeat/", "heartbeat/", "complete/"]


@pytest.mark.parametrize("callback", [None, {"url": "file:///etc/passwd"}, {"url": "http://[", "token": "t"}])
def test_accepting_needs_a_usable_callback(agents: Agents, callback: Json | None) -> None:
    response = agents.post("report-writer", params={"text": "Bees fly.", "mode": "async"}, callback=callback)

    assert (response.status_code, "callback" in response.json()["detail"]) == (400, True)


def test_the_recorder_counts_concurrent_and_repeated_executions(
    agents: Agents, callback_server: CallbackServer
) -> None:
    agents.client.delete("/recorder")
    callback_server.may_answer.clear()
    job: Json = {"params": {"text": "Bees fly.", "mode": "async"}, "callback": callback_server.callback}
    for tenant, run in (("a", "run-1"), ("a", "run-2"), ("b", "run-3"), ("b", "run-3")):
        agents.client.post(
            "/report-writer", json={**job, "tenant_id": tenant}, headers={"X-Execution-Id": run}
        )
    during = agents.record_of("report-writer")

    callback_server.may_answer.set()
    verbs = [callback_server.report()[0] for _ in range(8)]

    after = agents.record_of("report-writer")
    assert (during["running"], during["max_running_by_tenant"]) == (4, {"a": 2, "b": 2})
    assert (verbs.count("complete/"), after["running"], after["finished"], after["max_running"]) == (
        4,
        0,
        4,
        4,
    )
    assert after["duplicates"] == {"run-3": 2}


def test_with_secrets_only_signed_requests_are_accepted(tmp_path: Path) -> None:
    with run_agents(TEXT_AGENTS, tmp_path, "--secret", SECRETS[0], "--secret", SECRETS[1]) as strict:
        assert strict.statuses(SECRETS[0], SECRETS[2]) == [200, 401, 401, 401, 401, 401]
        assert strict.statuses(SECRETS[1], SECRETS[2]) == [200, 401, 401, 401, 401, 401]


def test_the_auditor_in_javascript_checks_signatures_and_computes_the_same_figures(
    node_auditor: Agents, agents: Agents
) -> None:
    assert node_auditor.statuses(SECRETS[0], SECRETS[2]) == [200, 401, 401, 401, 401, 401]
    for text in (SMALL_TEXT, ARTICLE):
        python_data = agents.output("site-auditor", input={"content": text})["data"]
        body = json.dumps({"input": {"content": text}})
        response = node_auditor.client.post("/site-auditor", headers=sign(SECRETS[0], body), content=body)
        node_data = response.json()["output"]["data"]
        assert [node_data[name] for name in MEASURES] == [python_data[name] for name in MEASURES]


@pytest.mark.parametrize(("body", "status"), [("{}", 422), ("[]", 400), ('{"input": {"content": 5}}', 400)])
def test_the_auditor_in_javascript_refuses_malformed_input(
    node_auditor: Agents, body: str, status: int
) -> None:
    response = node_auditor.client.post("/site-auditor", headers=sign(SECRETS[0], body), content=body)

    assert (response.status_code, response.headers["Content-Type"]) == (status, "application/problem+json")


def test_the_agent_in_the_readme_has_at_most_40_lines_and_works(tmp_path: Path) -> None:
    code = README.partition("```python\n")[2].partition("```")[0]
    (tmp_path / "own.py").write_text(code)
    job = {"input": {"content": "bees"}, "wake_reason": "rejection", "reviewer_notes": "louder"}
    with subprocess.Popen(
        [sys.executable, tmp_path / "own.py", "0"], stdout=subprocess.PIPE, text=True
    ) as agent:
        assert agent.stdout
        answer = httpx2.post(agent.stdout.readline().strip(), json=job).json()
        agent.terminate()

    assert len([line for line in code.splitlines() if line]) <= 40
    assert answer["output"]["content"] == "BEES\n\nThe reviewer said: louder"


def test_the_example_pipeline_is_valid_and_forks_after_the_brief() -> None:
    text = (ROOT / "examples/pipelines/content-brief.yaml").read_text()

    pipeline = parse(load(text, filename="content-brief.yaml"), known_roles=ROLES, known_templates=())

    needs = [(step.id, tuple(step.depends_on), step.requires_approval) for step in pipeline.steps]
    assert needs[:2] == [("keywords", (), False), ("brief", ("keywords",), True)]
    assert needs[2:] == [("outline", ("brief",), False), ("audit", ("brief",), False)]


def test_the_server_prints_its_address_and_terminates_cleanly() -> None:
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [*TEXT_AGENTS, "--port", "0"], cwd=ROOT, stdout=pipe, stderr=pipe, text=True
    ) as process:
        assert process.stdout
        first_line = process.stdout.readline()
        process.terminate()
        _, errors = process.communicate(timeout=60)

    assert re.fullmatch(r"Text agents listen at http://127\.0\.0\.1:\d+\n", first_line)
    assert (process.returncode, errors) == (0, "")
