"""The pages about work in a real browser: live updates, colour schemes and widths, without console errors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from activities import bulk_jobs, relay
from activities.models import Activity
from activities.submission import NewActivity, submit
from agents.contracts import Accepted, Completed, Output
from pipelines import submission, versions
from tenants.context import tenant_scope
from tests import pages
from tests.accepted_work import AgentClient
from tests.console_user import Person
from tests.engine import eventually
from tests.questions import ARTICLE, Questions

pytestmark = pytest.mark.ui


@pytest.fixture
def screen(ann: Person) -> Iterator[Any]:
    """A page for which `ann` has signed in. Errors in its console fail the test."""
    with pages.page_of(ann.user, pages.REFUSED, "net::ERR_INTERNET_DISCONNECTED") as page:
        yield page


def work(questions: Questions, *names: str, role: str = "qa") -> None:
    with tenant_scope(questions.tenant.pk):
        submit([NewActivity(name=name, agent_role=role) for name in names], actor="token:planner")
    relay.flush()


def article(questions: Questions) -> Any:
    versions.save(questions.tenant.pk, ARTICLE, actor="test")
    return submission.start_run(questions.tenant.pk, "article", submission.NewRun(), actor="token:planner")


def test_a_list_shows_changes_without_a_reload(questions: Questions, screen: Any) -> None:
    work(questions, "Bees")
    screen.goto("/activities/")
    with screen.expect_response(lambda answer: "/live/" in answer.url):
        screen.reload()
    screen.wait_for_selector("text=created")

    work(questions, "Wasps")
    pages.wait_live(screen, "text=Wasps")
    questions.engine.drain()

    pages.wait_live(screen, "#rows tr:nth-child(2) .tag.good")
    assert not screen.is_visible("#connection")


def test_open_sections_and_focus_survive_an_update(questions: Questions, screen: Any) -> None:
    work(questions, "Bees")
    with tenant_scope(questions.tenant.pk):
        one = Activity.objects.get()
    screen.goto(f"/activities/{one.pk}/")
    screen.click("#stretches summary")
    screen.focus("button[value=cancel]")
    screen.wait_for_selector("h1 .tag.idle")

    questions.engine.drain()

    pages.wait_live(screen, "h1 .tag.good")
    assert screen.evaluate("document.querySelector('#stretches').open")
    assert "done" in screen.inner_text("h1")


def test_a_lost_connection_is_reported_and_restored(questions: Questions, screen: Any) -> None:
    screen.goto("/activities/")
    screen.wait_for_selector("text=There are no activities yet.")
    screen.wait_for_selector("body[data-following=open]")
    screen.context.set_offline(True)
    eventually(pages.cut_streams)  # the page may know of its stream before the thread that carries it does
    screen.wait_for_selector("#connection:visible")
    assert "This page was updated at" in screen.inner_text("#connection")
    assert screen.evaluate("document.body.classList.contains('stale')")

    work(questions, "Bees")
    screen.context.set_offline(False)

    screen.wait_for_selector("text=Bees")
    screen.wait_for_selector("#connection", state="hidden")


def test_a_page_that_a_proxy_refuses_for_a_while_is_updated_later(questions: Questions, screen: Any) -> None:
    screen.goto("/activities/")
    screen.wait_for_selector("text=There are no activities yet.")
    screen.wait_for_function("() => document.body.dataset.following === 'open'")
    screen.route("**/activities/", lambda route: route.fulfill(status=429))

    work(questions, "Bees")
    screen.wait_for_selector("#connection:has-text('Retrying')")
    screen.unroute("**/activities/")

    screen.wait_for_selector("text=Bees")
    screen.wait_for_selector("#connection", state="hidden")


def test_the_picture_of_a_run_is_live_and_links_activities(questions: Questions, screen: Any) -> None:
    run = article(questions)
    screen.goto(f"/runs/{run.pk}/")
    screen.wait_for_selector("#dag svg")
    assert screen.locator("#dag g.good").count() == 0

    questions.engine.drain()

    pages.wait_live(screen, "#dag g.ask")
    assert "Needs approval" in screen.inner_text("#dag")
    assert (
        screen.evaluate("getComputedStyle(document.querySelector('#dag g.good .box')).fill") != "rgb(0, 0, 0)"
    )
    screen.click("#dag a >> nth=0")
    screen.wait_for_url("**/activities/**")
    assert "Research" in screen.inner_text("h1")


def test_the_progress_of_a_bulk_job_is_live(questions: Questions, screen: Any) -> None:
    work(questions, "One", "Two", "Three", role="strategy-writer")
    screen.once("dialog", lambda dialog: dialog.accept())
    screen.goto("/activities/?q=role:strategy-writer")
    screen.click("text=Bulk actions")
    screen.check("input[value=cancel]")
    screen.click("text=Apply to all 3")
    screen.wait_for_url("**/bulk/*-*/**")
    assert "0\nof 3" in screen.inner_text(".figures")

    bulk_jobs.work()

    screen.wait_for_selector("text=completed")
    assert "3\ndone" in screen.inner_text(".figures")


def test_a_query_updates_the_list_and_the_address(questions: Questions, screen: Any) -> None:
    work(questions, "Bees", "Wasps")
    screen.goto("/activities/")
    screen.fill("#query", "name:bees")
    screen.press("#query", "Enter")

    screen.wait_for_selector("#rows tbody tr:only-child")

    assert "q=name%3Abees" in screen.url
    screen.wait_for_selector("text=Bees")
    screen.click("text=Save this view")
    screen.fill("#view-name", "Bees alone")
    screen.press("#view-name", "Enter")
    screen.wait_for_selector("text=Saved as “Bees alone”.")
    assert "q=name%3Abees" in screen.url


def test_prompt_and_output_appear_without_a_reload(questions: Questions, screen: Any) -> None:
    questions.engine.agent.behaviour = lambda request: Completed(Output(content="# Bees\n\nBees **fly**."))
    work(questions, "Bees")
    with tenant_scope(questions.tenant.pk):
        one = Activity.objects.get()
    screen.goto(f"/activities/{one.pk}/")
    screen.wait_for_selector("text=There is no output.")

    questions.engine.drain()

    pages.wait_live(screen, "#texts .prose strong")
    # The texts are loaded once more if the output was there before the event that announces it.
    screen.wait_for_function("document.querySelector('#texts').innerText.includes('# Bees')")


def test_the_prompt_of_a_gate_opens_in_place(questions: Questions, screen: Any) -> None:
    gate = questions.gate(name="Summary")
    screen.goto(f"/inbox/{gate.pk}/")
    assert "Prompt and input" not in screen.inner_text("#asked")

    screen.click("#told summary")

    screen.wait_for_selector("#told section >> text=Prompt and input")
    assert "Output" not in screen.inner_text("#told")


def test_colours_follow_the_system_until_chosen(questions: Questions, screen: Any) -> None:
    def paper() -> str:
        return str(screen.evaluate("getComputedStyle(document.body).backgroundColor"))

    screen.emulate_media(color_scheme="light")
    screen.goto("/activities/")
    light = paper()
    screen.emulate_media(color_scheme="dark")
    dark = paper()
    screen.click("#theme")
    chosen = paper()
    screen.goto("/runs/")

    assert light != dark
    assert (chosen, paper()) == (light, light), "the choice is kept"
    assert screen.inner_text("#theme") == "Dark colours"


def test_the_menu_of_a_phone_opens_by_keyboard(screen: Any) -> None:
    screen.set_viewport_size({"width": 390, "height": 800})
    screen.goto("/activities/")
    assert not screen.is_visible(".places")

    screen.focus(".opens")
    pages.press(screen, "Enter")
    assert screen.is_visible("text=Runs")
    pages.press(screen, "Escape")

    assert not screen.is_visible(".places")


def start_agent(questions: Questions) -> tuple[Any, AgentClient]:
    questions.engine.agent.behaviour = lambda request: Accepted()
    work(questions, "Bees")
    questions.engine.drain()
    with tenant_scope(questions.tenant.pk):
        return Activity.objects.get(), AgentClient(questions.engine.agent.calls[-1])


def log_lines(agent: AgentClient, *lines: tuple[str, str]) -> None:
    answer = agent.post("log", {"lines": [{"kind": kind, "text": text} for kind, text in lines]})
    assert answer.json()["accepted"] == len(lines)


def test_the_log_of_a_running_agent_is_live_and_escaped(questions: Questions, screen: Any) -> None:
    activity, agent = start_agent(questions)
    log_lines(agent, ("text", "I look for bees."))
    agent.post("heartbeat", {"progress": {"percent": 40, "message": "reading <b>page</b> 3"}})
    with screen.expect_response(lambda answer: "/live/" in answer.url):
        screen.goto(f"/activities/{activity.pk}/")
    screen.wait_for_selector("#log >> text=I look for bees.")
    assert screen.locator("progress").get_attribute("value") == "40"
    assert screen.is_visible("text=reading <b>page</b> 3")
    screen.wait_for_selector("body[data-following=open]")

    hostile = "<img src=x onerror=alert(1)>\u202e<script>alert(2)</script>"
    log_lines(agent, ("tool_call", 'search {"q": "bees"}'), ("tool_result", hostile), ("note", "x" * 2_000))
    pages.wait_live(screen, "#log >> text=search")
    assert screen.locator("#log li").count() == 4
    assert screen.locator("#log img, #log script").count() == 0
    assert "<img src=x" in screen.inner_text("#log")
    screen.click("#log summary")
    log_lines(agent, *(("text", f"line {number}") for number in range(300)))
    pages.wait_live(screen, "#log >> text=line 299")
    assert screen.locator("#log li").count() == 201
    at_the_end = "box => Math.abs(box.scrollTop) < 2 && box.scrollHeight > box.clientHeight"
    assert screen.eval_on_selector(".log-box", at_the_end)

    agent.post(
        "heartbeat",
        {"progress": {"percent": 90}, "usage": {"input_tokens": 1200, "output_tokens": 30, "model": "m-1"}},
    )
    screen.wait_for_selector("#running >> text=1200 in, 30 out")
    assert screen.locator("progress").get_attribute("value") == "90"
    agent.post("complete", {"output": {"content": "Done."}})

    pages.wait_live(screen, "#running >> text=Last attempt")
    screen.click("text=104 earlier lines")
    screen.wait_for_selector("h1 >> text=Transcript")
    assert screen.locator(".log li").count() == 304
