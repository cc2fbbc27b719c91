"""Text of agents, people and addresses is shown as text: it adds no element, attribute or address to a page."""

from __future__ import annotations

from collections.abc import Iterator
from html.parser import HTMLParser
from itertools import product
from typing import Any

from django.http import HttpResponse

from activities import cancellation
from activities.decision_rules import Voter
from activities.human_tasks import decisions
from activities.models import Activity
from agents.contracts import Completed, Output
from pipelines import submission, versions
from tenants.context import tenant_scope
from tenants.models import Tenant
from tests.cases import in_one_test
from tests.console_user import INBOX, Person
from tests.questions import Questions

#: Elements of our templates and of Markdown. Any other element comes from a text.
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
#: Short texts are combined, because rendering a page of each kind for every text takes long.
TOGETHER = (" ".join(NASTY[:4]), " ".join((*NASTY[4:6], NASTY[9])), *NASTY[6:9])


class Audit(HTMLParser):
    """Collects elements, attributes and links that are not ours."""

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
    """Assert that the page has only our own elements, and return its text."""
    audit = Audit()
    audit.feed(answer.content.decode())
    assert audit.found == []
    assert answer.content.decode().count("<script") == audit.scripts > 0
    return " ".join("".join(audit.text).split())


def _kinds(questions: Questions, nasty: str) -> Iterator[Activity]:
    """Create items of every kind with the hostile text in each field."""
    short = nasty[:60]
    yield questions.task(
        nasty, human_role=short, description=nasty, params={nasty: nasty}, metadata={"reassign_reason": nasty}
    )
    first = questions.gate(nasty, name=nasty)
    yield first
    decisions.reject(questions.tenant.pk, first.pk, actor=f"token:{nasty}", notes=nasty)
    questions.engine.agent.behaviour = lambda request: Completed(
        Output(content=f"x{nasty}\n\n{nasty}", data={nasty: [nasty]})
    )
    questions.engine.drain()
    yield questions.newest(link_kind="gate")
    voted = questions.approval(nasty, options=(nasty, "other"), quorum=2, asked_by=nasty)
    with tenant_scope(questions.tenant.pk):
        Activity.objects.filter(pk__in=questions.get_linked(voted)).update(name=nasty, agent_role=short)
    by = Voter(f"user:{nasty}", identity="user:0")
    decisions.decide(questions.tenant.pk, voted.pk, "approve", by=by, notes=nasty, chosen_option=nasty)
    yield voted
    yield questions.review(nasty, nasty, human_role=short)
    yield questions.blocker(nasty, type=short)
    yield questions.subtask(nasty[:200], description=nasty, human_role=short)
    yield questions.escalation(nasty)


@in_one_test("nasty", TOGETHER)
def test_hostile_text_adds_no_element_to_any_item(nasty: str, questions: Questions, ann: Person) -> None:
    items = list(_kinds(questions, nasty))

    listed = harmless(ann.get())
    assert " ".join(nasty.split()) in listed
    for item in items:
        harmless(ann.look(item))


def test_hostile_text_of_closed_items_adds_no_element(questions: Questions, ann: Person) -> None:
    withdrawn, task, gate = questions.approval(SCRIPT), questions.task(SCRIPT), questions.gate(SCRIPT)
    cancellation.cancel(questions.tenant.pk, withdrawn.pk, actor=f"token:{SCRIPT}", reason=SCRIPT)
    decisions.approve(
        questions.tenant.pk, gate.pk, actor=f"user:{SCRIPT}", notes=SCRIPT, chosen_option=SCRIPT
    )
    form = ann.form(task)

    response = ann.browser.post(
        form.action.partition("#")[0],
        {**form.fields, "action": "complete", "notes": SCRIPT, "output": SCRIPT},
    )

    assert response.status_code == 302
    assert f"Completed: {SCRIPT}" in harmless(ann.get())
    for item in (withdrawn, task, gate):
        assert SCRIPT in harmless(ann.look(item))


def test_text_of_a_refused_form_is_escaped(questions: Questions, ann: Person) -> None:
    gate = questions.gate()
    nasty = f"</textarea>{SCRIPT}"

    answer = ann.form(gate).send(ann.browser, ("action", "approve"), notes=nasty + "x" * 20_000)

    assert answer.status_code == 400
    assert nasty in harmless(answer)


def test_hostile_names_of_pipelines_and_tenants_are_escaped(
    questions: Questions, ann: Person, root: Person
) -> None:
    step = {"id": "call", "name": SCRIPT, "human_role": "sales", "description": SCRIPT}
    versions.save(questions.tenant.pk, {"key": "p", "name": SCRIPT, "steps": [step]}, actor="t")
    submission.start_run(questions.tenant.pk, "p", submission.NewRun(), actor="t")
    with tenant_scope(questions.tenant.pk):
        Tenant.objects.filter(pk=questions.tenant.pk).update(name=SCRIPT)

    assert f"pipeline {SCRIPT} asks sales" in harmless(ann.get())
    harmless(ann.look(questions.newest()))
    assert SCRIPT in root.get().content.decode().replace("&lt;", "<").replace("&gt;", ">")
    assert SCRIPT not in root.get().content.decode()


def test_hostile_query_parameters_are_escaped(questions: Questions, ann: Person) -> None:
    task = questions.task()

    for nasty, address in product(TOGETHER, (INBOX, f"{INBOX}{task.pk}/")):
        harmless(ann.browser.get(address, {"search": nasty, "role": nasty}))
        refused: Any = ann.browser.get(address, {"kind": nasty})
        assert refused.status_code == 404
        assert "text/html" not in refused["Content-Type"] or SCRIPT not in refused.content.decode()


def test_a_link_shows_its_host_and_sends_no_referrer(questions: Questions, ann: Person) -> None:
    gate = questions.gate(
        "[https://bank.example](https://evil.example/login) and ![a hive](https://evil.example/p.png)"
    )

    page = ann.look(gate)

    text = harmless(page)
    assert "https://bank.example (evil.example)" in text
    assert "[picture: a hive] (evil.example)" in text
    assert page["Referrer-Policy"] == "same-origin"


def test_a_very_long_text_is_cut(questions: Questions, ann: Person) -> None:
    gate = questions.gate("[" * 400_000)

    assert "100000 more characters are available through the API." in harmless(ann.look(gate))
