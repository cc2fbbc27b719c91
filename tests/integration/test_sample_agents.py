"""The sample agents, as an orchestrator meets them: real servers on loopback, real jobs, real effects."""

from __future__ import annotations

import json
import queue
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from base64 import b64encode
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx2
import pytest
from standardwebhooks.webhooks import Webhook

from pipelines.definition import load, parse

ROOT = Path(__file__).resolve().parents[2]
ARTICLE = (ROOT / "examples/input/urban-beekeeping.md").read_text()
README = (ROOT / "examples/agents/README.md").read_text()
TEXT_AGENTS = (sys.executable, "-m", "examples.agents.text_agents")
NODE_AUDITOR = ("node", "examples/agents/node_auditor/agent.js")
ROLES = ("keyword-researcher", "content-brief-writer", "blog-writer", "site-auditor", "report-writer")
SECRETS = [f"whsec_{b64encode(letter * 24).decode()}" for letter in (b"a", b"b", b"c")]
SMALL_TEXT = "# A heading does not count\n\nThe cat sat on the mat. It was happy."
Json = dict[str, Any]


class Agents:
    """A running server of agents."""

    def __init__(self, client: httpx2.Client) -> None:
        self.client = client

    def post(self, role: str, headers: dict[str, str] | None = None, **job: Any) -> httpx2.Response:
        return self.client.post(
            f"/{role}", json={"job_id": str(uuid4()), "tenant_id": "t1", **job}, headers=headers
        )

    def output(self, role: str, **job: Any) -> Json:
        """The output of a job that succeeds."""
        response = self.post(role, **job)
        assert response.status_code == 200, response.text
        output: Json = response.json()["output"]
        return output

    def recorded(self, role: str) -> Json:
        record: Json = self.client.get("/recorder").json()["roles"][role]
        return record


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


class Desk(BaseHTTPRequestHandler):
    """The orchestrator's side of a callback: keeps what is reported, answers what the test wants."""

    reports: queue.Queue[tuple[str, str | None, Json]]
    answers: queue.Queue[tuple[int, Json]]
    open: threading.Event

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.reports.put((self.path, self.headers["Authorization"], body))
        self.open.wait(30)
        status, answer = (200, {"stop": False}) if self.answers.empty() else self.answers.get()
        payload = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(payload)))
        self.end_headers()
        self.wfile.write(payload)

    def log_message(self, format: str, *arguments: object) -> None:
        pass


@pytest.fixture
def desk() -> Iterator[type[Desk]]:
    attributes = {"reports": queue.Queue(), "answers": queue.Queue(), "open": threading.Event()}
    handler = type("OneDesk", (Desk,), attributes)
    handler.open.set()
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    handler.url = f"http://127.0.0.1:{server.server_port}/api/v1/agent-runs/42/"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield handler
    server.shutdown()
    server.server_close()


def callback(desk: Any) -> Json:
    return {"url": desk.url, "token": "run-token"}


def words_in(text: str) -> str:
    return " ".join(text.split())


# --- keywords ----------------------------------------------------------------------------------------------------


def test_keywords_are_the_phrases_that_the_article_is_about(keywords: Json) -> None:
    found = {item["phrase"]: item for item in keywords["data"]["keywords"]}

    assert {"hives", "wild bees", "urban beekeeping", "city honey", "honey harvest"} <= found.keys()
    assert found["urban beekeeping"]["count"] == ARTICLE.lower().count("urban beekeeping") == 3
    scores = [item["score"] for item in keywords["data"]["keywords"]]
    assert scores == sorted(scores, reverse=True)
    assert not {"the", "and", "them", "which"} & found.keys()
    assert f"| {next(iter(found))} |" in keywords["content"]


def test_positions_of_a_keyword_are_offsets_in_the_text_that_was_sent(keywords: Json) -> None:
    phrase = next(item for item in keywords["data"]["keywords"] if item["phrase"] == "wild bees")

    places = [ARTICLE[start : start + len("wild bees")] for start in phrase["positions"]]

    assert places == ["wild bees"] * phrase["count"]


def test_text_may_come_as_a_parameter_and_the_number_of_keywords_be_limited(agents: Agents) -> None:
    output = agents.output("keyword-researcher", params={"text": ARTICLE, "limit": 3})

    assert len(output["data"]["keywords"]) == 3


# --- brief -------------------------------------------------------------------------------------------------------


def test_brief_has_title_audience_angle_and_an_outline_of_the_keywords(brief: Json, keywords: Json) -> None:
    data, phrases = brief["data"], {item["phrase"] for item in keywords["data"]["keywords"]}

    assert data["title"] == "Urban beekeeping: honey from the rooftops"
    assert "urban beekeeping" in data["audience"]
    assert data["angle"]
    assert sum(section["words"] for section in data["outline"]) == data["words"] == 900
    assert all(set(section["keywords"]) <= phrases and section["keywords"] for section in data["outline"])
    assert any(section["subheadings"] for section in data["outline"])
    assert all(f"**H2: {section['heading']}**" in brief["content"] for section in data["outline"])


def test_settings_of_the_step_win_over_what_is_derived(agents: Agents, keywords: Json) -> None:
    params = {"title": "Roof honey", "audience": "Tenants", "angle": "What it costs", "words": 500}

    data = agents.output("content-brief-writer", input=keywords, params=params)["data"]

    assert {name: data[name] for name in params} == params


def headings(data: Json) -> list[str]:
    return [section["heading"] for section in data["outline"]]


Check = Callable[[Json, Json], bool]
NOTES: tuple[tuple[str, Check], ...] = (
    ("Please add a section about varroa mites.", lambda new, old: headings(new)[-2] == "Varroa mites"),
    ("Add an FAQ section", lambda new, old: "FAQ" in headings(new)),
    ("Make it shorter.", lambda new, old: new["words"] < old["words"]),
    ("Cut it by 20 %.", lambda new, old: new["words"] == old["words"] * 0.8),
    ("max 600 words", lambda new, old: new["words"] == 600),
    ("Keep it under 1,200 words.", lambda new, old: new["words"] == old["words"] and new["limit"] == 1200),
    ("At least 1500 words!", lambda new, old: new["words"] == 1500),
    (
        "The introduction is too long.",
        lambda new, old: new["outline"][0]["words"] < old["outline"][0]["words"],
    ),
    ("Mention the insurance.", lambda new, old: new["mentions"] == ["insurance"]),
    ("It doesn’t mention insurance", lambda new, old: new["mentions"] == ["insurance"]),  # noqa: RUF001
    ("Don't mention pesticides.", lambda new, old: new["avoid"] == ["pesticides"]),
    ("Audience: school teachers", lambda new, old: new["audience"] == "School teachers"),
    ("Write it for school teachers.", lambda new, old: new["audience"] == "School teachers"),
    ('Change the title to "Honey from above".', lambda new, old: new["title"] == "Honey from above"),
    ("Focus on costs.", lambda new, old: new["angle"] == "Focus on costs"),
    (
        "Remove the section on city.",
        lambda new, old: set(headings(old)) - set(headings(new)) == {"City: what to know"},
    ),
    ("Remove wild bees", lambda new, old: "wild bees" not in json.dumps(new["outline"]).lower()),
    (
        'Rename "Understanding hives" to "How a hive works"',
        lambda new, old: headings(new)[1] == "How a hive works",
    ),
    ("Move the conclusion to the front.", lambda new, old: headings(new)[0] == "Conclusion"),
)


@pytest.mark.parametrize(("note", "is_followed"), NOTES, ids=[note for note, _ in NOTES])
def test_a_reviewers_wish_is_granted(
    note: str, is_followed: Check, agents: Agents, brief: Json, keywords: Json
) -> None:
    job = {
        "wake_reason": "rejection",
        "reviewer_notes": note,
        "prompt": f"<<rejected>>\n{brief['content']}\n<<end>>",
    }

    revised = agents.output("content-brief-writer", input=keywords, **job)

    assert is_followed(revised["data"], brief["data"]), revised["content"]
    assert [change["acted"] for change in revised["data"]["changes"]] == [True]
    assert f"“{note}” → " in revised["content"]


def test_every_sentence_of_the_notes_is_answered_and_what_was_not_understood_is_said(
    agents: Agents, keywords: Json
) -> None:
    notes = "Good start. Title is too weak. Nice pictures would help!\n- Drop zebras\n- shorter, and mention water"

    output = agents.output(
        "content-brief-writer", input=keywords, wake_reason="rejection", reviewer_notes=notes
    )

    acted = {change["sentence"]: change["acted"] for change in output["data"]["changes"]}
    assert acted == {
        "Good start.": False,
        "Title is too weak.": False,
        "Nice pictures would help!": False,
        "Drop zebras": False,
        "shorter, and mention water": True,
    }
    assert output["content"].count("**not acted on:**") == 4


def test_rejected_brief_is_found_in_the_prompt_then_in_the_session_and_else_made_anew(
    agents: Agents, keywords: Json
) -> None:
    job = {"input": keywords, "job_id": str(uuid4())}
    first = agents.post("content-brief-writer", **job, params={"title": "Mine"}).json()
    rejected = {**job, "wake_reason": "rejection", "reviewer_notes": "shorter"}

    remembered = agents.output("content-brief-writer", **rejected, session_id=first["session_id"])
    shown = agents.output("content-brief-writer", **rejected, prompt=first["output"]["content"])
    unknown = agents.output("content-brief-writer", **rejected, session_id="lost in a restart")

    assert [output["data"]["title"] for output in (remembered, shown)] == ["Mine", "Mine"]
    assert unknown["data"]["title"] != "Mine"
    assert all(output["data"]["words"] == 630 for output in (remembered, shown, unknown))


def test_a_second_review_builds_on_the_first_and_its_word_limit_holds(agents: Agents, keywords: Json) -> None:
    job = {"input": keywords, "job_id": str(uuid4()), "wake_reason": "rejection"}
    once = agents.output("content-brief-writer", **job, reviewer_notes="Max 500 words. Title: Second try")

    twice = agents.output(
        "content-brief-writer", **job, reviewer_notes="Add a section on law", prompt=once["content"]
    )

    assert (twice["data"]["title"], twice["data"]["words"]) == ("Second try", 500)
    assert "Law" in headings(twice["data"])


# --- article, audit, summary -------------------------------------------------------------------------------------


def test_article_follows_the_approved_brief_in_the_words_of_the_source(agents: Agents, brief: Json) -> None:
    article = agents.output("blog-writer", input=brief)

    sections = article["data"]["sections"]
    assert [section["heading"] for section in sections] == headings(brief["data"])
    assert all(section["paragraphs"] for section in sections)
    sentences = [
        part for section in sections for text in section["paragraphs"] for part in re.split(r"(?<=\.) ", text)
    ]
    assert all(sentence in words_in(ARTICLE) for sentence in sentences)
    assert len(sentences) == len(set(sentences))
    assert all(section["words"] <= section["budget"] for section in sections)
    assert f"## {headings(brief['data'])[1]}" in article["content"]


def test_article_covers_what_the_reviewer_asked_for_and_says_what_the_source_lacks(
    agents: Agents, keywords: Json
) -> None:
    notes = "Mention the insurer. Mention robots. Don't mention wild bees. Add a section about varroa mites."
    revised = agents.output(
        "content-brief-writer", input=keywords, wake_reason="rejection", reviewer_notes=notes
    )

    article = agents.output("blog-writer", input=revised)

    covered = {mention["phrase"]: mention["covered"] for mention in article["data"]["mentions"]}
    assert covered == {"insurer": True, "robots": False}
    assert "ask their insurer" in article["content"]
    assert "robots: *The source says nothing" in article["content"]
    assert "wild bees" not in json.dumps(article["data"]["sections"])
    assert "one treatment against varroa mites" in article["content"].partition("## Varroa mites")[2]


def test_audit_of_a_small_text_agrees_with_the_figures_computed_by_hand(agents: Agents) -> None:
    data = agents.output("site-auditor", input={"content": SMALL_TEXT})["data"]

    # 9 words in 2 sentences, 10 syllables: 206.835 - 1.015 * 4.5 - 84.6 * 10 / 9, and 0.39 * 4.5 + 11.8 * 10 / 9 - 15.59
    measured = {
        name: data[name] for name in ("sentences", "words", "syllables", "reading_ease", "grade_level")
    }
    assert measured == {
        "sentences": 2,
        "words": 9,
        "syllables": 10,
        "reading_ease": 108.3,
        "grade_level": -0.7,
    }


def test_audit_finds_long_sentences_passives_and_repeated_words(agents: Agents) -> None:
    text = f"The hive was quickly opened by Dr. Bee. We saw the the queen. {'And so on ' * 9}it went."

    data = agents.output("site-auditor", input={"content": text})["data"]

    assert [item["text"] for item in data["passive_phrases"]] == ["was quickly opened"]
    assert [(item["text"], text[: item["start"]].endswith("the ")) for item in data["repeated_words"]] == [
        ("the", True)
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

    places = [words_in(ARTICLE).find(item["sentence"]) for item in data["summary"]]
    assert len(places) == 4
    assert -1 not in places
    assert places == sorted(places)


# --- whatever users send -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("text", ["", " \n\t", "\x00\x01", "?!", "```\ncode\n```"])
def test_input_without_words_is_refused_with_a_clear_message(agents: Agents, role: str, text: str) -> None:
    response = agents.post(role, input={"content": text})

    assert (response.status_code, response.headers["Content-Type"]) == (422, "application/problem+json")
    assert response.json()["code"] == "nothing_to_read"
    assert "text" in response.json()["detail"]


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize(
    "text",
    [
        "Bees fly.",
        (ARTICLE * 200)[:1_000_000],
        "城市养蜂越来越受欢迎。城市养蜂需要耐心。",  # noqa: RUF001
        "Die Imkerei in der Stadt wächst. Für die Bienen ist die Stadt ein Garten.",
        bytes(range(256)).decode("latin-1") * 40,
        "\ud800 half a character, \N{HONEYBEE} a bee and a \ufffd gap",
        "[" * 300_000 + " bees",
    ],
    ids=["line", "megabyte", "chinese", "german", "binary", "surrogate", "brackets"],
)
def test_any_text_with_a_word_in_it_gets_a_result(agents: Agents, role: str, text: str) -> None:
    body = json.dumps({"input": {"content": text}})

    response = agents.client.post(f"/{role}", content=body)

    assert response.status_code == 200, response.text
    assert response.json()["output"]["content"]


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b"\xff", b"[" * 100_000, b'{"input": "text"}', b'{"params": {"text": 5}}']
)
def test_malformed_body_is_a_400_problem_document(agents: Agents, body: bytes) -> None:
    response = agents.client.post("/keyword-researcher", content=body)

    assert (response.status_code, response.json()["code"]) == (400, "malformed_request")


def test_wrong_address_method_and_size_are_refused(agents: Agents) -> None:
    too_large = agents.client.post(
        "/report-writer", headers={"Content-Length": "99999999"}, content=iter([b"{"])
    )

    assert agents.post("no-such-role").status_code == 404
    assert agents.client.get("/report-writer").headers["Allow"] == "POST"
    assert agents.client.post("/healthz", content=b"{}").headers["Allow"] == "GET"
    assert too_large.status_code == 413
    assert sorted(agents.client.get("/healthz").json()["skills"]) == sorted(ROLES)


# --- switches, callbacks, recorder -------------------------------------------------------------------------------


def test_failures_on_request_have_the_status_that_the_protocol_gives_them_meaning_by(agents: Agents) -> None:
    def status(fail: Any, **job: Any) -> int:
        params = {"text": "Bees fly.", "fail": fail, "retry_after": 7}
        return agents.post("report-writer", params=params, **job).status_code

    assert [status("retryable"), status("permanent"), status("sometimes")] == [503, 400, 400]
    assert [status(2, job_id="flaky") for _ in range(3)] == [503, 503, 200]
    limited = agents.post("report-writer", params={"fail": "rate_limit", "retry_after": 7})
    assert (limited.status_code, limited.headers["Retry-After"]) == (429, "7")


def test_accepted_job_sends_heartbeats_and_then_the_result_with_its_token(agents: Agents, desk: Any) -> None:
    params = {"mode": "async", "delay_ms": 30, "heartbeat_ms": 20}
    accepted = agents.post(
        "site-auditor", input={"content": SMALL_TEXT}, params=params, callback=callback(desk)
    )

    reports = [desk.reports.get(timeout=20)]
    while not reports[-1][0].endswith("/complete/"):
        reports.append(desk.reports.get(timeout=20))

    assert accepted.status_code == 202
    assert {path for path, _, _ in reports[:-1]} == {"/api/v1/agent-runs/42/heartbeat/"}
    assert len(reports) >= 3
    assert {token for _, token, _ in reports} == {"Bearer run-token"}
    assert reports[-1][2]["output"]["data"]["words"] == 9


@pytest.mark.parametrize(
    "answer", [(200, {"stop": True, "reason": "cancelled"}), (409, {"stop": True}), (401, {})]
)
def test_accepted_job_that_is_told_to_stop_reports_nothing_more(
    agents: Agents, desk: Any, answer: tuple[int, Json]
) -> None:
    desk.answers.put(answer)
    agents.client.delete("/recorder")
    agents.post("site-auditor", params={"text": SMALL_TEXT, "mode": "async"}, callback=callback(desk))

    desk.reports.get(timeout=20)
    while agents.recorded("site-auditor")["running"]:
        time.sleep(0.01)

    assert agents.recorded("site-auditor")["failed"] == 1
    with pytest.raises(queue.Empty):
        desk.reports.get(timeout=0.3)


def test_accepted_job_without_text_is_reported_as_failed_for_good(agents: Agents, desk: Any) -> None:
    agents.post("report-writer", params={"mode": "async"}, callback=callback(desk))

    desk.reports.get(timeout=20)
    path, _, body = desk.reports.get(timeout=20)

    assert path.endswith("/fail/")
    assert (body["error"]["code"], body["error"]["retryable"]) == ("nothing_to_read", False)


def test_report_is_repeated_until_the_orchestrator_takes_it(agents: Agents, desk: Any) -> None:
    desk.answers.put((503, {}))
    agents.post("report-writer", params={"text": "Bees fly.", "mode": "async"}, callback=callback(desk))

    paths = [desk.reports.get(timeout=20)[0].rsplit("/", 2)[1] for _ in range(3)]

    assert paths == ["heartbeat", "heartbeat", "complete"]


@pytest.mark.parametrize("given", [None, {"url": "file:///etc/passwd"}, {"url": "http://[", "token": "t"}])
def test_accepting_needs_a_usable_callback(agents: Agents, given: Json | None) -> None:
    response = agents.post("report-writer", params={"text": "Bees fly.", "mode": "async"}, callback=given)

    assert (response.status_code, response.json()["errors"][0]["path"][:8]) == (400, "callback")


def test_recorder_sees_how_many_run_at_once_and_which_execution_came_twice(agents: Agents, desk: Any) -> None:
    agents.client.delete("/recorder")
    desk.open.clear()
    job: Json = {"params": {"text": "Bees fly.", "mode": "async"}, "callback": callback(desk)}
    for tenant, run in (("a", "run-1"), ("a", "run-2"), ("b", "run-3"), ("b", "run-3")):
        agents.post("report-writer", tenant_id=tenant, headers={"X-Execution-Id": run}, **job)
    during = agents.recorded("report-writer")

    desk.open.set()
    finished = [desk.reports.get(timeout=20)[0].endswith("/complete/") for _ in range(8)]

    after = agents.recorded("report-writer")
    assert (during["running"], during["max_running_by_tenant"]) == (4, {"a": 2, "b": 2})
    assert (sum(finished), after["running"], after["finished"], after["max_running"]) == (4, 0, 4, 4)
    assert after["duplicates"] == {"run-3": 2}


# --- signatures, the other language, the documents ---------------------------------------------------------------


def signed(secret: str, body: str, sent_at: datetime | None = None) -> dict[str, str]:
    moment = sent_at or datetime.now(UTC)
    signature = Webhook(secret).sign("msg_1", moment, body)
    return {
        "webhook-id": "msg_1",
        "webhook-timestamp": str(int(moment.timestamp())),
        "webhook-signature": signature,
    }


def signature_answers(agents: Agents, good: str, wrong: str) -> list[int]:
    """Statuses of: a good signature, another secret, a changed body, an old signature, none."""
    body = json.dumps({"params": {"text": SMALL_TEXT}})
    old = datetime.now(UTC) - timedelta(minutes=6)
    tries = [(signed(good, body), body), (signed(wrong, body), body), (signed(good, body), body + " ")]
    tries += [(signed(good, body, old), body), ({}, body)]
    return [
        agents.client.post("/site-auditor", headers=headers, content=text).status_code
        for headers, text in tries
    ]


def test_with_secrets_only_requests_signed_with_one_of_them_are_taken(tmp_path: Path) -> None:
    with running(TEXT_AGENTS, tmp_path, "--secret", SECRETS[0], "--secret", SECRETS[1]) as strict:
        assert signature_answers(strict, SECRETS[0], SECRETS[2]) == [200, 401, 401, 401, 401]
        assert signature_answers(strict, SECRETS[1], SECRETS[2])[0] == 200


def test_auditor_in_javascript_checks_signatures_and_agrees_with_the_one_in_python(
    node_auditor: Agents, agents: Agents
) -> None:
    def audited(text: str) -> Json:
        body = json.dumps({"input": {"content": text}})
        return node_auditor.client.post(
            "/site-auditor", headers=signed(SECRETS[0], body), content=body
        ).json()["output"]["data"]

    measures = ("sentences", "words", "syllables", "reading_ease", "grade_level")
    assert signature_answers(node_auditor, SECRETS[0], SECRETS[2]) == [200, 401, 401, 401, 401]
    for text in (SMALL_TEXT, ARTICLE):
        ours = agents.output("site-auditor", input={"content": text})["data"]
        assert {name: audited(text)[name] for name in measures} == {name: ours[name] for name in measures}


@pytest.mark.parametrize(
    ("body", "status"), [("{}", 422), ("[]", 400), ("{", 400), ('{"input": {"content": 5}}', 400)]
)
def test_auditor_in_javascript_refuses_what_it_cannot_read(
    node_auditor: Agents, body: str, status: int
) -> None:
    response = node_auditor.client.post("/site-auditor", headers=signed(SECRETS[0], body), content=body)

    assert (response.status_code, response.headers["Content-Type"]) == (status, "application/problem+json")


def test_agent_of_the_readme_has_at_most_40_lines_and_works(tmp_path: Path) -> None:
    code = re.search(r"```python\n(.*?)```", README, re.DOTALL)[1]  # type: ignore[index]
    (tmp_path / "own.py").write_text(code)
    with subprocess.Popen(
        [sys.executable, tmp_path / "own.py", "0"], stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            job = {"input": {"content": "bees"}, "wake_reason": "rejection", "reviewer_notes": "louder"}
            answer = httpx2.post(process.stdout.readline().strip(), json=job).json()  # type: ignore[union-attr]
        finally:
            process.terminate()

    assert len([line for line in code.splitlines() if line]) <= 40
    assert answer["output"]["content"] == "BEES\n\nThe reviewer said: louder"


def test_every_wish_that_the_readme_names_is_granted(agents: Agents, keywords: Json) -> None:
    block = README.partition("What it does not understand")[2].partition("## ")[0].split("\n\n", 1)[1]
    wishes = [wish for line in block.splitlines() for wish in re.split(r"\s{3,}", line.strip()) if wish]

    job = {"input": keywords, "wake_reason": "rejection"}
    changes = [
        agents.output("content-brief-writer", **job, reviewer_notes=wish)["data"]["changes"]
        for wish in wishes
    ]

    assert len(changes) == 12
    assert [change["sentence"] for (change,) in changes if not change["acted"]] == [
        "Remove the section on costs."
    ]


def test_pipeline_file_is_accepted_and_forks_after_the_approved_brief() -> None:
    text = (ROOT / "examples/pipelines/content-brief.yaml").read_text()

    pipeline = parse(load(text, filename="content-brief.yaml"), known_roles=ROLES, known_templates=())

    assert {step.id: tuple(step.depends_on) for step in pipeline.steps} == {
        "keywords": (),
        "brief": ("keywords",),
        "outline": ("brief",),
        "audit": ("brief",),
    }
    assert [step.id for step in pipeline.steps if step.requires_approval] == ["brief"]


def test_server_prints_its_address_and_ends_quietly_when_told() -> None:
    command = [*TEXT_AGENTS, "--port", "0"]
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        first_line = process.stdout.readline()  # type: ignore[union-attr]
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=10)

    assert re.fullmatch(r"Text agents listen at http://127\.0\.0\.1:\d+\n", first_line)
    assert (process.returncode, errors) == (0, "")
