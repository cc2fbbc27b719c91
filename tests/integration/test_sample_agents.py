"""The sample agents, as an orchestrator meets them: real servers on loopback, real jobs, real effects."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import threading
import time
from base64 import b64encode
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from queue import Queue
from typing import Any

import httpx2
import pytest
from standardwebhooks.webhooks import Webhook

from pipelines.definition import load, parse

ROOT = Path(__file__).resolve().parents[2]
ARTICLE = (ROOT / "examples/input/urban-beekeeping.md").read_text()
ARTICLE_LINE = " ".join(ARTICLE.split())
README = (ROOT / "examples/agents/README.md").read_text()
TEXT_AGENTS = (sys.executable, "-m", "examples.agents.text_agents")
NODE_AUDITOR = ("node", "examples/agents/node_auditor/agent.js")
ROLES = ("keyword-researcher", "content-brief-writer", "blog-writer", "site-auditor", "report-writer")
SECRETS = [f"whsec_{b64encode(letter * 24).decode()}" for letter in (b"a", b"b", b"c")]
SMALL_TEXT = "# A heading does not count\n\nThe cat sat on the mat. It was happy."
MEASURES = ("sentences", "words", "syllables", "reading_ease", "grade_level")
Json = dict[str, Any]


class Agents:
    """A running server of agents."""

    def __init__(self, client: httpx2.Client) -> None:
        self.client = client

    def post(self, role: str, **job: Any) -> httpx2.Response:
        return self.client.post(f"/{role}", json=job)

    def output(self, role: str, **job: Any) -> Json:
        """The output of a job that succeeds."""
        response = self.post(role, **job)
        assert response.status_code == 200, response.text
        output: Json = response.json()["output"]
        return output

    def recorded(self, role: str) -> Json:
        record: Json = self.client.get("/recorder").json()["roles"][role]
        return record

    def statuses(self, good: str, wrong: str) -> list[int]:
        """Answers to: a good signature, a wrong secret, a changed body, an old one, a later version, none."""
        body, past = json.dumps({"params": {"text": SMALL_TEXT}}), datetime.now(UTC) - timedelta(minutes=6)
        tries = [(signed(good, body), body), (signed(wrong, body), body), (signed(good, body), body + " ")]
        future = {
            **signed(good, body),
            "webhook-signature": signed(good, body)["webhook-signature"].replace("v1", "v2"),
        }
        tries += [(signed(good, body, past), body), (future, body), ({}, body)]
        return [
            self.client.post("/site-auditor", headers=head, content=text).status_code for head, text in tries
        ]


def signed(secret: str, body: str, sent_at: datetime | None = None) -> dict[str, str]:
    at = sent_at or datetime.now(UTC)
    stamp = {"webhook-id": "msg_1", "webhook-timestamp": str(int(at.timestamp()))}
    return {**stamp, "webhook-signature": Webhook(secret).sign("msg_1", at, body)}


@contextmanager
def running(command: Sequence[str], folder: Path, *options: str) -> Iterator[Agents]:
    ready_file = folder / "url"
    process = subprocess.Popen([*command, "--port", "0", "--ready-file", str(ready_file), *options], cwd=ROOT)
    try:
        deadline = time.monotonic() + 20
        while not ready_file.exists():
            assert process.poll() is None, "the server ended before it was ready"
            assert time.monotonic() < deadline, "the server was not ready in 20 seconds"
            time.sleep(0.02)
        with httpx2.Client(base_url=ready_file.read_text(), timeout=60) as client:
            yield Agents(client)
    finally:
        process.terminate()
        process.wait(10)


@pytest.fixture(scope="module")
def agents(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Agents]:
    with running(TEXT_AGENTS, tmp_path_factory.mktemp("text")) as started:
        yield started


@pytest.fixture(scope="module")
def node_auditor(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Agents]:
    if shutil.which("node") is None:
        pytest.skip("node is not installed; the auditor in JavaScript needs Node 20")
    with running(NODE_AUDITOR, tmp_path_factory.mktemp("node"), "--secret", SECRETS[0]) as started:
        yield started


@pytest.fixture(scope="module")
def keywords(agents: Agents) -> Json:
    return agents.output("keyword-researcher", input={"content": ARTICLE})


@pytest.fixture(scope="module")
def brief(agents: Agents, keywords: Json) -> Json:
    return agents.output("content-brief-writer", input=keywords)


Review = Callable[..., Json]


@pytest.fixture(scope="module")
def review(agents: Agents, keywords: Json) -> Review:
    """Sends a brief back with notes, and returns the next one."""

    def reject(notes: str, **job: Any) -> Json:
        rejection = {"wake_reason": "rejection", "reviewer_notes": notes, **job}
        return agents.output("content-brief-writer", input=keywords, **rejection)

    return reject


class Desk:
    """The orchestrator's side of a callback: keeps what is reported, and answers as the test wants."""

    def __init__(self) -> None:
        self.reports: Queue[tuple[str, str, Json]] = Queue()
        self.answers: Queue[tuple[int, Json]] = Queue()
        self.may_answer = threading.Event()
        self.may_answer.set()
        self.callback: Json = {"token": "run-token"}

    def report(self) -> tuple[str, str, Json]:
        return self.reports.get(timeout=20)

    def take(self, request: BaseHTTPRequestHandler) -> None:
        body = json.loads(request.rfile.read(int(request.headers["Content-Length"])))
        verb = request.path.removeprefix("/api/v1/agent-runs/42/")
        self.reports.put((verb, request.headers["Authorization"], body))
        self.may_answer.wait(30)
        status, answer = (200, {"stop": False}) if self.answers.empty() else self.answers.get()
        request.send_response(status)
        request.end_headers()
        request.wfile.write(json.dumps(answer).encode())


@pytest.fixture
def desk() -> Iterator[Desk]:
    desk = Desk()
    methods = {"do_POST": lambda request: desk.take(request), "log_message": lambda *_: None}
    handler = type("Handler", (BaseHTTPRequestHandler,), methods)
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        desk.callback["url"] = f"http://127.0.0.1:{server.server_port}/api/v1/agent-runs/42/"
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield desk
        server.shutdown()


def headings(brief: Json) -> list[str]:
    return [section["heading"] for section in brief["data"]["outline"]]


def test_keywords_are_the_phrases_that_the_article_is_about(keywords: Json) -> None:
    found = {item["phrase"]: item for item in keywords["data"]["keywords"]}

    assert {"hives", "wild bees", "urban beekeeping", "city honey", "honey harvest"} <= found.keys()
    assert found["urban beekeeping"]["count"] == ARTICLE.lower().count("urban beekeeping") == 3
    scores = [item["score"] for item in found.values()]
    assert scores == sorted(scores, reverse=True)
    assert not {"the", "and", "them", "which"} & found.keys()
    assert f"| {next(iter(found))} |" in keywords["content"]


def test_positions_of_a_keyword_are_offsets_in_the_text_that_was_sent(keywords: Json) -> None:
    phrase = next(item for item in keywords["data"]["keywords"] if item["phrase"] == "wild bees")

    assert [ARTICLE[start : start + 9] for start in phrase["positions"]] == ["wild bees"] * 4


def test_text_may_come_as_a_parameter_and_the_number_of_keywords_be_limited(agents: Agents) -> None:
    output = agents.output("keyword-researcher", params={"text": ARTICLE, "limit": 3})

    assert len(output["data"]["keywords"]) == 3


def test_brief_has_title_audience_angle_and_an_outline_of_the_keywords(brief: Json, keywords: Json) -> None:
    data, phrases = brief["data"], {item["phrase"] for item in keywords["data"]["keywords"]}

    assert data["title"] == "Urban beekeeping: honey from the rooftops"
    assert "urban beekeeping" in data["audience"]
    assert "hives, bees, city and honey" in data["angle"]
    assert sum(section["words"] for section in data["outline"]) == data["words"] == 900
    assert all(section["keywords"] and set(section["keywords"]) <= phrases for section in data["outline"])
    assert any(section["subheadings"] for section in data["outline"])
    assert all(f"**H2: {heading}**" in brief["content"] for heading in headings(brief))


def test_settings_of_the_step_win_over_what_is_derived(agents: Agents, keywords: Json) -> None:
    params = {"title": "Roof honey", "audience": "Tenants", "angle": "What it costs", "words": 500}

    data = agents.output("content-brief-writer", input=keywords, params=params)["data"]

    assert {name: data[name] for name in params} == params


@pytest.mark.parametrize(
    ("note", "place", "expected"),
    [
        ("Please add a section about varroa mites.", "outline.5.heading", "Varroa mites"),
        ("Add an FAQ section", "outline.5.heading", "FAQ"),
        ("Make it shorter.", "words", 630),
        ("Cut it by 20 %.", "words", 720),
        ("max 600 words", "words", 600),
        ("Keep it under 1,200 words.", "limit", 1200),
        ("At least 1500 words!", "words", 1500),
        ("The introduction is too long.", "outline.0.words", 76),
        ("Mention the insurance.", "mentions", ["insurance"]),
        ("It doesn\N{RIGHT SINGLE QUOTATION MARK}t mention insurance", "mentions", ["insurance"]),
        ("Don't mention wild bees.", "avoid", ["wild bees"]),
        ("Audience: school teachers", "audience", "School teachers"),
        ("Write it for school teachers.", "audience", "School teachers"),
        ('Change the title to "Honey from above".', "title", "Honey from above"),
        ("Focus on costs.", "angle", "Focus on costs"),
        ("Remove the section on city.", "outline.3.heading", "Honey: limits and open questions"),
        ("Remove wild bees", "outline.2.subheadings.0.heading", "Urban beekeeping"),
        ('Rename "Understanding hives" to "How a hive works"', "outline.1.heading", "How a hive works"),
        ("Move the conclusion to the front.", "outline.0.heading", "Conclusion"),
    ],
)
def test_a_reviewers_wish_is_granted(
    note: str, place: str, expected: Any, brief: Json, review: Review
) -> None:
    def found(part: Any) -> Any:
        for key in place.split("."):
            part = part[int(key) if key.isdigit() else key]
        return part

    revised = review(note, prompt=f"Your output:\n{brief['content']}\nReviewer: {note}")

    assert (found(revised["data"]), found(brief["data"]) != expected) == (expected, True)
    assert [change["acted"] for change in revised["data"]["changes"]] == [True]
    assert f"“{note}” → " in revised["content"]


def test_every_sentence_of_the_notes_is_answered_also_those_that_were_not_understood(review: Review) -> None:
    revised = review(
        "Good start. Title is too weak. Nice pictures would help!\n- Drop zebras\n- shorter, add law"
    )

    changes = {change["sentence"]: change["acted"] for change in revised["data"]["changes"]}
    not_acted_on = ("Good start.", "Title is too weak.", "Nice pictures would help!", "Drop zebras")
    assert changes == {**dict.fromkeys(not_acted_on, False), "shorter, add law": True}
    assert revised["content"].count("**not acted on:**") == 4


def test_rejected_brief_is_the_one_in_the_prompt_or_in_the_session_or_made_anew(
    agents: Agents, keywords: Json, review: Review
) -> None:
    job = {"job_id": "job-1", "input": keywords, "params": {"title": "Mine"}}
    first = agents.post("content-brief-writer", **job).json()

    shown = review("shorter", prompt=first["output"]["content"])
    remembered = review("shorter", job_id="job-1", session_id=first["session_id"])
    unknown = review("shorter", job_id="job-1", session_id="lost in a restart")

    assert [output["data"]["title"] == "Mine" for output in (shown, remembered, unknown)] == [
        True,
        True,
        False,
    ]
    assert [output["data"]["words"] for output in (shown, remembered, unknown)] == [630] * 3


def test_a_second_review_builds_on_the_first_and_its_word_limit_holds(review: Review) -> None:
    once = review("Max 500 words. Title: Second try")

    twice = review("Add a section on law", prompt=once["content"])

    assert (twice["data"]["title"], twice["data"]["words"]) == ("Second try", 500)
    assert "Law" in headings(twice)


def test_article_follows_the_approved_brief_in_the_words_of_the_source(agents: Agents, brief: Json) -> None:
    article = agents.output("blog-writer", input=brief)

    sections = article["data"]["sections"]
    assert [section["heading"] for section in sections] == headings(brief)
    text = [paragraph for section in sections for paragraph in section["paragraphs"]]
    sentences = [sentence for paragraph in text for sentence in re.split(r"(?<=\.) ", paragraph)]
    assert all(sentence in ARTICLE_LINE for sentence in sentences)
    assert len(sentences) == len(set(sentences)) > 20
    assert all(0 < section["words"] <= section["budget"] for section in sections)
    assert f"## {headings(brief)[1]}" in article["content"]


def test_article_covers_what_the_reviewer_asked_for_and_says_what_the_source_lacks(
    agents: Agents, review: Review
) -> None:
    notes = "Mention the insurer. Mention robots. Don't mention wild bees. Add a section about varroa mites."
    article = agents.output("blog-writer", input=review(notes))

    covered = {mention["phrase"]: mention["covered"] for mention in article["data"]["mentions"]}
    assert covered == {"insurer": True, "robots": False}
    assert "ask their insurer" in article["content"]
    assert "robots: *The source says nothing" in article["content"]
    assert "wild bees" not in json.dumps(article["data"]["sections"])
    assert "one treatment against varroa mites" in article["content"].partition("## Varroa mites")[2]


def test_audit_of_a_small_text_agrees_with_the_figures_computed_by_hand(agents: Agents) -> None:
    data = agents.output("site-auditor", input={"content": SMALL_TEXT})["data"]

    # 206.835 - 1.015 * 9 / 2 - 84.6 * 10 / 9 is 108.3; 0.39 * 9 / 2 + 11.8 * 10 / 9 - 15.59 is -0.7.
    assert [data[name] for name in MEASURES] == [2, 9, 10, 108.3, -0.7]


def test_audit_finds_long_sentences_passives_and_repeated_words(agents: Agents) -> None:
    text = f"The hive was quickly opened by Dr. Bee. We saw the the queen. {'And so on ' * 9}it went."

    data = agents.output("site-auditor", input={"content": text})["data"]

    assert [item["text"] for item in data["passive_phrases"]] == ["was quickly opened"]
    assert [(item["text"], item["start"]) for item in data["repeated_words"]] == [
        ("the", text.index("the queen"))
    ]
    assert [item["words"] for item in data["long_sentences"]] == [29]


def test_audit_measures_the_source_and_its_coverage_of_the_briefs_keywords(
    agents: Agents, brief: Json
) -> None:
    data = agents.output("site-auditor", input=brief)["data"]

    assert data["sentences"] == 50
    coverage = {item["phrase"]: item for item in data["keyword_coverage"]}
    assert (coverage["urban beekeeping"]["count"], coverage["urban beekeeping"]["in_title"]) == (3, True)
    assert (coverage["wild bees"]["count"], coverage["wild bees"]["in_opening"]) == (4, False)


def test_summary_consists_of_sentences_of_the_text_in_their_order(agents: Agents) -> None:
    data = agents.output("report-writer", input={"content": ARTICLE}, params={"sentences": 4})["data"]

    places = [ARTICLE_LINE.index(item["sentence"]) for item in data["summary"]]
    assert (len(places), places) == (4, sorted(places))


@pytest.mark.parametrize("role", ROLES)
def test_input_without_words_is_refused_with_a_clear_message(agents: Agents, role: str) -> None:
    for text in ("", " \n\t", "\x00\x01", "?!", "```\ncode\n```"):
        response = agents.post(role, input={"content": text})

        assert (response.status_code, response.headers["Content-Type"]) == (422, "application/problem+json")
        assert (response.json()["code"], "text" in response.json()["detail"]) == ("nothing_to_read", True)


STRANGE_TEXTS = {
    "line": "Bees fly.",
    "megabyte": (ARTICLE * 200)[:1_000_000],
    "chinese": "\u57ce\u5e02\u517b\u8702\u9700\u8981\u8010\u5fc3\u3002" * 3,
    "german": "Die Imkerei in der Stadt wächst. Für die Bienen ist die Stadt ein Garten.",
    "binary": bytes(range(256)).decode("latin-1") * 40,
    "surrogate": "\ud800 half a character, \N{HONEYBEE} a bee and a \ufffd gap",
    "brackets": "[" * 300_000 + " bees",
}


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("kind", STRANGE_TEXTS)
def test_any_text_with_a_word_in_it_gets_a_result(agents: Agents, role: str, kind: str) -> None:
    body = json.dumps({"input": {"content": STRANGE_TEXTS[kind]}})

    response = agents.client.post(f"/{role}", content=body)

    assert (response.status_code, response.json()["output"]["content"][:1]) == (200, "#")


@pytest.mark.parametrize(
    "body", ["", "{", "[]", b"\xff", "[" * 100_000, '{"input": "x"}', '{"params": {"text": 5}}']
)
def test_malformed_body_is_a_400_problem_document(agents: Agents, body: str | bytes) -> None:
    response = agents.client.post("/keyword-researcher", content=body)

    assert (response.status_code, response.json()["code"]) == (400, "malformed_request")


def test_wrong_address_method_and_size_are_refused(agents: Agents) -> None:
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


def test_failures_on_request_have_the_statuses_of_the_protocol(agents: Agents) -> None:
    def answer(fail: Any) -> httpx2.Response:
        params = {"text": "Bees fly.", "fail": fail, "retry_after": 7}
        return agents.post("report-writer", job_id="flaky", params=params)

    assert [answer(kind).status_code for kind in ("retryable", "permanent", "sometimes")] == [503, 400, 400]
    assert [answer(2).status_code for _ in range(3)] == [503, 503, 200]
    assert (answer("rate_limit").status_code, answer("rate_limit").headers["Retry-After"]) == (429, "7")


def test_accepted_job_sends_heartbeats_and_then_the_result_with_its_token(agents: Agents, desk: Desk) -> None:
    params = {"text": SMALL_TEXT, "mode": "async", "delay_ms": 30, "heartbeat_ms": 20}

    accepted = agents.post("site-auditor", params=params, callback=desk.callback)

    reports = [desk.report()]
    while reports[-1][0] == "heartbeat/":
        reports.append(desk.report())

    assert accepted.status_code == 202
    assert (reports[-1][0], len(reports) >= 3) == ("complete/", True)
    assert {token for _, token, _ in reports} == {"Bearer run-token"}
    assert reports[-1][2]["output"]["data"]["words"] == 9


@pytest.mark.parametrize("answer", [(200, {"stop": True}), (409, {"stop": True}), (401, {})])
def test_accepted_job_that_is_told_to_stop_ends_unfinished(agents: Agents, desk: Desk, answer: Any) -> None:
    agents.client.delete("/recorder")
    desk.answers.put(answer)
    agents.post("site-auditor", params={"text": SMALL_TEXT, "mode": "async"}, callback=desk.callback)

    while agents.recorded("site-auditor")["running"]:
        time.sleep(0.01)

    assert [desk.report()[0], desk.reports.qsize(), agents.recorded("site-auditor")["failed"]] == [
        "heartbeat/",
        0,
        1,
    ]


def test_accepted_job_without_text_is_reported_as_failed_for_good(agents: Agents, desk: Desk) -> None:
    agents.post("report-writer", params={"mode": "async"}, callback=desk.callback)

    (first, _, _), (second, _, body) = desk.report(), desk.report()

    assert (first, second, body["error"]["retryable"]) == ("heartbeat/", "fail/", False)


def test_report_is_repeated_until_the_orchestrator_takes_it(agents: Agents, desk: Desk) -> None:
    desk.answers.put((503, {}))
    agents.post("report-writer", params={"text": "Bees fly.", "mode": "async"}, callback=desk.callback)

    assert [desk.report()[0] for _ in range(3)] == ["heartbeat/", "heartbeat/", "complete/"]


@pytest.mark.parametrize("callback", [None, {"url": "file:///etc/passwd"}, {"url": "http://[", "token": "t"}])
def test_accepting_needs_a_usable_callback(agents: Agents, callback: Json | None) -> None:
    response = agents.post("report-writer", params={"text": "Bees fly.", "mode": "async"}, callback=callback)

    assert (response.status_code, "callback" in response.json()["detail"]) == (400, True)


def test_recorder_sees_how_many_run_at_once_and_which_execution_came_twice(
    agents: Agents, desk: Desk
) -> None:
    agents.client.delete("/recorder")
    desk.may_answer.clear()
    job: Json = {"params": {"text": "Bees fly.", "mode": "async"}, "callback": desk.callback}
    for tenant, run in (("a", "run-1"), ("a", "run-2"), ("b", "run-3"), ("b", "run-3")):
        agents.client.post(
            "/report-writer", json={**job, "tenant_id": tenant}, headers={"X-Execution-Id": run}
        )
    during = agents.recorded("report-writer")

    desk.may_answer.set()
    verbs = [desk.report()[0] for _ in range(8)]

    after = agents.recorded("report-writer")
    assert (during["running"], during["max_running_by_tenant"]) == (4, {"a": 2, "b": 2})
    assert (verbs.count("complete/"), after["running"], after["finished"], after["max_running"]) == (
        4,
        0,
        4,
        4,
    )
    assert after["duplicates"] == {"run-3": 2}


def test_with_secrets_only_requests_signed_with_one_of_them_are_taken(tmp_path: Path) -> None:
    with running(TEXT_AGENTS, tmp_path, "--secret", SECRETS[0], "--secret", SECRETS[1]) as strict:
        assert strict.statuses(SECRETS[0], SECRETS[2]) == [200, 401, 401, 401, 401, 401]
        assert strict.statuses(SECRETS[1], SECRETS[2]) == [200, 401, 401, 401, 401, 401]


def test_auditor_in_javascript_checks_signatures_and_agrees_with_the_other(
    node_auditor: Agents, agents: Agents
) -> None:
    assert node_auditor.statuses(SECRETS[0], SECRETS[2]) == [200, 401, 401, 401, 401, 401]
    for text in (SMALL_TEXT, ARTICLE):
        ours = agents.output("site-auditor", input={"content": text})["data"]
        body = json.dumps({"input": {"content": text}})
        response = node_auditor.client.post("/site-auditor", headers=signed(SECRETS[0], body), content=body)
        theirs = response.json()["output"]["data"]
        assert [theirs[name] for name in MEASURES] == [ours[name] for name in MEASURES]


@pytest.mark.parametrize(("body", "status"), [("{}", 422), ("[]", 400), ('{"input": {"content": 5}}', 400)])
def test_auditor_in_javascript_refuses_what_it_cannot_read(
    node_auditor: Agents, body: str, status: int
) -> None:
    response = node_auditor.client.post("/site-auditor", headers=signed(SECRETS[0], body), content=body)

    assert (response.status_code, response.headers["Content-Type"]) == (status, "application/problem+json")


def test_agent_of_the_readme_has_40_lines_and_works(tmp_path: Path) -> None:
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


def test_every_wish_that_the_readme_names_is_understood(review: Review) -> None:
    block = README.partition("it says there too.\n\n")[2].partition("\n\n")[0]
    wishes = re.split(r"\s{3,}", block.strip())

    changes = [change for wish in wishes for change in review(wish)["data"]["changes"]]

    assert len(wishes) == len(changes) == 12
    assert [change["sentence"] for change in changes if not change["acted"]] == []


def test_pipeline_file_is_accepted_and_forks_after_the_approved_brief() -> None:
    text = (ROOT / "examples/pipelines/content-brief.yaml").read_text()

    pipeline = parse(load(text, filename="content-brief.yaml"), known_roles=ROLES, known_templates=())

    needs = [(step.id, tuple(step.depends_on), step.requires_approval) for step in pipeline.steps]
    assert needs[:2] == [("keywords", (), False), ("brief", ("keywords",), True)]
    assert needs[2:] == [("outline", ("brief",), False), ("audit", ("brief",), False)]


def test_server_prints_its_address_and_ends_quietly_when_told() -> None:
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [*TEXT_AGENTS, "--port", "0"], cwd=ROOT, stdout=pipe, stderr=pipe, text=True
    ) as process:
        assert process.stdout
        first_line = process.stdout.readline()
        process.terminate()
        _, errors = process.communicate(timeout=10)

    assert re.fullmatch(r"Text agents listen at http://127\.0\.0\.1:\d+\n", first_line)
    assert (process.returncode, errors) == (0, "")
