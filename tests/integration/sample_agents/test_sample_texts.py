"""What the sample agents produce from an article: keywords, briefs, drafts, audits and summaries."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest

from tests.integration.sample_agents.desk import ARTICLE, MEASURES, README, ROLES, SMALL_TEXT, Agents, Json

pytestmark = pytest.mark.long

ARTICLE_LINE = " ".join(ARTICLE.split())
Review = Callable[..., Json]


@pytest.fixture(scope="module")
def review(agents: Agents, keywords: Json) -> Review:
    """Return a function that rejects a brief with notes and returns the revised one."""

    def reject(notes: str, **job: Any) -> Json:
        rejection = {"wake_reason": "rejection", "reviewer_notes": notes, **job}
        return agents.output("content-brief-writer", input=keywords, **rejection)

    return reject


def headings(brief: Json) -> list[str]:
    return [section["heading"] for section in brief["data"]["outline"]]


def test_keywords_are_the_main_phrases_of_the_article(keywords: Json) -> None:
    by_phrase = {item["phrase"]: item for item in keywords["data"]["keywords"]}

    assert {"hives", "wild bees", "urban beekeeping", "city honey", "honey harvest"} <= by_phrase.keys()
    assert by_phrase["urban beekeeping"]["count"] == ARTICLE.lower().count("urban beekeeping") == 3
    scores = [item["score"] for item in by_phrase.values()]
    assert scores == sorted(scores, reverse=True)
    assert not {"the", "and", "them", "which"} & by_phrase.keys()
    assert f"| {next(iter(by_phrase))} |" in keywords["content"]


def test_positions_of_a_keyword_are_offsets_in_the_text_that_was_sent(keywords: Json) -> None:
    phrase = next(item for item in keywords["data"]["keywords"] if item["phrase"] == "wild bees")

    assert [ARTICLE[start : start + 9] for start in phrase["positions"]] == ["wild bees"] * 4


def test_text_and_a_limit_of_keywords_can_be_parameters(agents: Agents) -> None:
    output = agents.output("keyword-researcher", params={"text": ARTICLE, "limit": 3})

    assert len(output["data"]["keywords"]) == 3


def test_a_brief_has_title_audience_angle_and_an_outline_of_the_keywords(brief: Json, keywords: Json) -> None:
    data, phrases = brief["data"], {item["phrase"] for item in keywords["data"]["keywords"]}

    assert data["title"] == "Urban beekeeping: honey from the rooftops"
    assert "urban beekeeping" in data["audience"]
    assert "hives, bees, city and honey" in data["angle"]
    assert sum(section["words"] for section in data["outline"]) == data["words"] == 900
    assert all(section["keywords"] and set(section["keywords"]) <= phrases for section in data["outline"])
    assert any(section["subheadings"] for section in data["outline"])
    assert all(f"**H2: {heading}**" in brief["content"] for heading in headings(brief))


def test_parameters_of_the_step_override_derived_values(agents: Agents, keywords: Json) -> None:
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
def test_a_request_of_a_reviewer_changes_the_brief(
    note: str, place: str, expected: Any, brief: Json, review: Review
) -> None:
    def value_at(part: Any) -> Any:
        for key in place.split("."):
            part = part[int(key) if key.isdigit() else key]
        return part

    revised = review(note, prompt=f"Your output:\n{brief['content']}\nReviewer: {note}")

    assert (value_at(revised["data"]), value_at(brief["data"]) != expected) == (expected, True)
    assert [change["acted"] for change in revised["data"]["changes"]] == [True]
    assert f"“{note}” → " in revised["content"]


def test_every_sentence_of_the_notes_is_answered(review: Review) -> None:
    revised = review(
        "Good start. Title is too weak. Nice pictures would help!\n- Drop zebras\n- shorter, add law"
    )

    changes = {change["sentence"]: change["acted"] for change in revised["data"]["changes"]}
    not_acted_on = ("Good start.", "Title is too weak.", "Nice pictures would help!", "Drop zebras")
    assert changes == {**dict.fromkeys(not_acted_on, False), "shorter, add law": True}
    assert revised["content"].count("**not acted on:**") == 4


def test_a_revision_starts_from_the_brief_in_the_prompt_or_session_or_a_new_one(
    agents: Agents, keywords: Json, review: Review
) -> None:
    job = {"job_id": "job-1", "input": keywords, "params": {"title": "Mine"}}
    first = agents.post("content-brief-writer", **job).json()

    from_prompt = review("shorter", prompt=first["output"]["content"])
    from_session = review("shorter", job_id="job-1", session_id=first["session_id"])
    unknown = review("shorter", job_id="job-1", session_id="lost in a restart")

    assert [output["data"]["title"] == "Mine" for output in (from_prompt, from_session, unknown)] == [
        True,
        True,
        False,
    ]
    assert [output["data"]["words"] for output in (from_prompt, from_session, unknown)] == [630] * 3


def test_a_second_review_keeps_the_changes_of_the_first(review: Review) -> None:
    once = review("Max 500 words. Title: Second try")

    twice = review("Add a section on law", prompt=once["content"])

    assert (twice["data"]["title"], twice["data"]["words"]) == ("Second try", 500)
    assert "Law" in headings(twice)


def test_an_article_follows_the_brief_with_sentences_of_the_source(agents: Agents, brief: Json) -> None:
    article = agents.output("blog-writer", input=brief)

    sections = article["data"]["sections"]
    assert [section["heading"] for section in sections] == headings(brief)
    text = [paragraph for section in sections for paragraph in section["paragraphs"]]
    sentences = [sentence for paragraph in text for sentence in re.split(r"(?<=\.) ", paragraph)]
    assert all(sentence in ARTICLE_LINE for sentence in sentences)
    assert len(sentences) == len(set(sentences)) > 20
    assert all(0 < section["words"] <= section["budget"] for section in sections)
    assert f"## {headings(brief)[1]}" in article["content"]


def test_an_article_covers_requests_and_says_what_the_source_lacks(agents: Agents, review: Review) -> None:
    notes = "Mention the insurer. Mention robots. Don't mention wild bees. Add a section about varroa mites."
    article = agents.output("blog-writer", input=review(notes))

    covered = {mention["phrase"]: mention["covered"] for mention in article["data"]["mentions"]}
    assert covered == {"insurer": True, "robots": False}
    assert "ask their insurer" in article["content"]
    assert "robots: *The source says nothing" in article["content"]
    assert "wild bees" not in json.dumps(article["data"]["sections"])
    assert "one treatment against varroa mites" in article["content"].partition("## Varroa mites")[2]


def test_the_audit_of_a_small_text_matches_figures_computed_by_hand(agents: Agents) -> None:
    data = agents.output("site-auditor", input={"content": SMALL_TEXT})["data"]

    # 206.835 - 1.015 * 9 / 2 - 84.6 * 10 / 9 is 108.3; 0.39 * 9 / 2 + 11.8 * 10 / 9 - 15.59 is -0.7.
    assert [data[name] for name in MEASURES] == [2, 9, 10, 108.3, -0.7]


def test_an_audit_finds_long_sentences_passives_and_repeated_words(agents: Agents) -> None:
    text = f"The hive was quickly opened by Dr. Bee. We saw the the queen. {'And so on ' * 9}it went."

    data = agents.output("site-auditor", input={"content": text})["data"]

    assert [item["text"] for item in data["passive_phrases"]] == ["was quickly opened"]
    assert [(item["text"], item["start"]) for item in data["repeated_words"]] == [
        ("the", text.index("the queen"))
    ]
    assert [item["words"] for item in data["long_sentences"]] == [29]


def test_an_audit_measures_the_source_and_its_coverage_of_keywords(agents: Agents, brief: Json) -> None:
    data = agents.output("site-auditor", input=brief)["data"]

    assert data["sentences"] == 50
    coverage = {item["phrase"]: item for item in data["keyword_coverage"]}
    assert (coverage["urban beekeeping"]["count"], coverage["urban beekeeping"]["in_title"]) == (3, True)
    assert (coverage["wild bees"]["count"], coverage["wild bees"]["in_opening"]) == (4, False)


def test_a_summary_consists_of_sentences_of_the_text_in_order(agents: Agents) -> None:
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
    "long": (ARTICLE * 200)[:150_000],
    "chinese": "\u57ce\u5e02\u517b\u8702\u9700\u8981\u8010\u5fc3\u3002" * 3,
    "german": "Die Imkerei in der Stadt wächst. Für die Bienen ist die Stadt ein Garten.",
    "binary": bytes(range(256)).decode("latin-1") * 40,
    "surrogate": "\ud800 half a character, \N{HONEYBEE} a bee and a \ufffd gap",
    "brackets": "[" * 100_000 + " bees",
}


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("kind", STRANGE_TEXTS)
def test_any_text_with_a_word_in_it_gets_a_result(agents: Agents, role: str, kind: str) -> None:
    body = json.dumps({"input": {"content": STRANGE_TEXTS[kind]}})

    response = agents.client.post(f"/{role}", content=body)

    assert (response.status_code, response.json()["output"]["content"][:1]) == (200, "#")


def test_a_megabyte_is_read_to_its_end(agents: Agents) -> None:
    text = (ARTICLE * 200)[:1_000_000]

    found_keywords = agents.output("keyword-researcher", input={"content": text})["data"]["keywords"]

    counts = {each["phrase"]: each["count"] for each in found_keywords}
    assert counts["urban beekeeping"] == text.lower().count("urban beekeeping")


def test_every_request_in_the_readme_is_understood(review: Review) -> None:
    block = README.partition("it did not understand.\n\n")[2].partition("\n\n")[0]
    requests = re.split(r"\s{3,}", block.strip())

    changes = [change for request in requests for change in review(request)["data"]["changes"]]

    assert len(requests) == len(changes) == 12
    assert [change["sentence"] for change in changes if not change["acted"]] == []
