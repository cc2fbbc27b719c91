"""Whatever agents, people and addresses say is shown as text: no element, attribute or address of theirs reaches the page."""

from __future__ import annotations

from collections.abc import Iterator
from html.parser import HTMLParser
from itertools import product
from typing import Any

import pytest
from django.http import HttpResponse

from activities import cancellation
from activities.decision_rules import Voter
from activities.human_tasks import approvals
from activities.models import Activity
from agents.contracts import Completed, Output
from pipelines import submission, versions
from tenants.context import tenant_scope
from tenants.models import Tenant
from tests.console_user import INBOX, Person
from tests.questions import Questions

#: Ours. What a text adds beyond Markdown's own would show here.
_ELEMENTS = """
html head meta title link script body a header img nav form input span button main div h1 h2 h3 h4 h5 h6 small kbd label select option
ul ol li bdi time b p section article dl dt dd details summary table thead tbody tr th td pre code em strong s blockquote textarea
fieldset legend dialog ins del br hr svg path
"""
_ATTRIBUTES = """
lang charset name content rel href type src defer class alt width height method action value id aria-label aria-current
aria-labelledby aria-describedby aria-keyshortcuts aria-invalid role hidden for maxlength placeholder selected tabindex datetime title
form checked required rows formnovalidate data-needs-note data-label scope open start data-stream data-kinds popover popovertarget
viewbox d aria-hidden autocomplete
data-live data-live-only data-live-from data-every data-keyed data-keeps-writing data-passes data-ask
data-go data-search data-keys hx-get hx-trigger hx-select hx-swap
"""
ELEMENTS, ATTRIBUTES = frozenset(_ELEMENTS.split()), frozenset(_ATTRIBUTES.split())
SCRIPT = "<script>alert(1)</script>"
NASTY = (
    SCRIPT,
    "<img src=x onerror=alert(1)>",
    '"><svg/onload=alert(1)>',
    "' autofocus onfocus='alert(1)",
    "</textarea><script>alert(1)</script>",
    "{{ settings.SECRET_KEY }}{% debug %}",
    "[click](javascript:alert(1)) ![p](https://evil.example/p.png) <javascript:alert(1)>",
    "<a href='javascript:alert(1)'>a</a><iframe src='//evil.example'></iframe><style>*{display:none}</style>",
    '[a](data:text/html;base64,PHNjcmlwdD4=) [b](vbscript:x) [c](/logout/) [d](//evil.example) [e](http://evil.example/"onclick="x)',
    "&lt;script&gt; &#60;script&#62; <!--",
)
#: The short ones several at a time: a page of each kind with each of them takes long, and each is escaped by itself.
TOGETHER = (" ".join(NASTY[:4]), " ".join((*NASTY[4:6], NASTY[9])), *NASTY[6:9])


class Audit(HTMLParser):
    """Finds what is not ours."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self.text: list[str] = []
        self.scripts = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found += [f"<{tag}>"] if tag not in ELEMENTS else []
        self.found += ["a script of the page"] if tag == "script" and "src" not in dict(attrs) else []
        self.scripts += tag == "script"
        for name, value in attrs:
            if name not in ATTRIBUTES:
                self.found.append(f"<{tag} {name}>")
            if name == "href" and not str(value).startswith(
                ("/", "?", "#", "http://", "https://", "mailto:")
            ):
                self.found.append(f"href={value}")
            if name == "src" and not str(value).startswith(("/static/console/", "/static/django_htmx/")):
                self.found.append(f"src={value}")
            if name == "href" and str(value).startswith(("http", "mailto")):
                self.found += (
                    [] if ("rel", "noopener noreferrer nofollow") in attrs else [f"followed: {value}"]
                )

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def harmless(answer: HttpResponse) -> str:
    """The text of the page, once it was found to have nothing but our own elements."""
    audit = Audit()
    audit.feed(answer.content.decode())
    assert audit.found == []
    assert answer.content.decode().count("<script") == audit.scripts > 0
    return " ".join("".join(audit.text).split())


def _kinds(asked: Questions, nasty: str) -> Iterator[Activity]:
    """Items of every kind in which every text is the nasty one."""
    short = nasty[:60]
    yield asked.task(
        nasty, human_role=short, description=nasty, params={nasty: nasty}, metadata={"reassign_reason": nasty}
    )
    first = asked.gate(nasty, name=nasty)
    yield first
    approvals.reject(asked.tenant.pk, first.pk, actor=f"token:{nasty}", notes=nasty)
    asked.engine.agent.behaviour = lambda request: Completed(
        Output(content=f"x{nasty}\n\n{nasty}", data={nasty: [nasty]})
    )
    asked.engine.drain()
    yield asked.newest(link_kind="gate")
    voted = asked.approval(nasty, options=(nasty, "other"), quorum=2, asked_by=nasty)
    with tenant_scope(asked.tenant.pk):
        Activity.objects.filter(pk__in=asked.get_linked(voted)).update(name=nasty, agent_role=short)
    by = Voter(f"user:{nasty}", identity="user:0")
    approvals.decide(asked.tenant.pk, voted.pk, "approve", by=by, notes=nasty, chosen_option=nasty)
    yield voted
    yield asked.review(nasty, nasty, human_role=short)
    yield asked.blocker(nasty, type=short)
    yield asked.subtask(nasty[:200], description=nasty, human_role=short)
    yield asked.escalation(nasty)


@pytest.mark.parametrize("nasty", TOGETHER)
def test_no_text_becomes_more_than_text(nasty: str, asked: Questions, ann: Person) -> None:
    items = list(_kinds(asked, nasty))

    listed = harmless(ann.get())
    assert " ".join(nasty.split()) in listed
    for item in items:
        harmless(ann.look(item))


def test_what_is_over_is_as_harmless(asked: Questions, ann: Person) -> None:
    withdrawn, task, gate = asked.approval(SCRIPT), asked.task(SCRIPT), asked.gate(SCRIPT)
    cancellation.cancel(asked.tenant.pk, withdrawn.pk, actor=f"token:{SCRIPT}", reason=SCRIPT)
    approvals.approve(asked.tenant.pk, gate.pk, actor=f"user:{SCRIPT}", notes=SCRIPT, chosen_option=SCRIPT)
    form = ann.form(task)

    told = ann.browser.post(
        form.action.partition("#")[0], {**form.fields, "deed": "complete", "notes": SCRIPT, "output": SCRIPT}
    )

    assert told.status_code == 302
    assert f"Completed: {SCRIPT}" in harmless(ann.get())
    for item in (withdrawn, task, gate):
        assert SCRIPT in harmless(ann.look(item))


def test_what_was_written_comes_back_as_text(asked: Questions, ann: Person) -> None:
    gate = asked.gate()
    nasty = f"</textarea>{SCRIPT}"

    answer = ann.form(gate).send(ann.browser, ("deed", "approve"), notes=nasty + "x" * 20_000)

    assert answer.status_code == 400
    assert nasty in harmless(answer)


def test_a_pipeline_and_a_tenant_may_have_any_name(asked: Questions, ann: Person, root: Person) -> None:
    step = {"id": "call", "name": SCRIPT, "human_role": "sales", "description": SCRIPT}
    versions.save(asked.tenant.pk, {"key": "p", "name": SCRIPT, "steps": [step]}, actor="t")
    submission.start_run(asked.tenant.pk, "p", submission.NewRun(), actor="t")
    with tenant_scope(asked.tenant.pk):
        Tenant.objects.filter(pk=asked.tenant.pk).update(name=SCRIPT)

    assert f"pipeline {SCRIPT} asks sales" in harmless(ann.get())
    harmless(ann.look(asked.newest()))
    assert SCRIPT in root.get().content.decode().replace("&lt;", "<").replace("&gt;", ">")
    assert SCRIPT not in root.get().content.decode()


def test_an_address_is_as_harmless_as_a_text(asked: Questions, ann: Person) -> None:
    task = asked.task()

    for nasty, address in product(NASTY, (INBOX, f"{INBOX}{task.pk}/")):
        harmless(ann.browser.get(address, {"search": nasty, "role": nasty}))
        refused: Any = ann.browser.get(address, {"kind": nasty})
        assert refused.status_code == 404
        assert "text/html" not in refused["Content-Type"] or SCRIPT not in refused.content.decode()


def test_a_link_says_where_it_leads_and_tells_nobody_from_where(asked: Questions, ann: Person) -> None:
    gate = asked.gate(
        "[https://bank.example](https://evil.example/login) and ![a hive](https://evil.example/p.png)"
    )

    page = ann.look(gate)

    said = harmless(page)
    assert "https://bank.example (evil.example)" in said
    assert "[picture: a hive] (evil.example)" in said
    assert page["Referrer-Policy"] == "same-origin"


def test_a_very_long_text_is_shown_plainly_and_cut(asked: Questions, ann: Person) -> None:
    gate = asked.gate("[" * 400_000)

    assert "100000 more characters are available through the API." in harmless(ann.look(gate))
