"""Text of agents and tenants is harmless in a real browser: nothing of it runs, sends requests or loads."""

from __future__ import annotations

import select
import socket
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

import pytest
from django.conf import settings as django_settings
from django.contrib import admin
from django.test import Client

from activities.models import Activity
from pipelines.models import Pipeline, Schedule
from tenants.context import system_scope
from tests import pages
from tests.api_objects import ApiObjects
from tests.browsing import list_url, page_url
from tests.console_user import INBOX
from tests.hostile_texts import LINE, LONG, SHORT, write_everywhere
from tests.questions import Questions
from tests.superusers import browser_of, create_superuser

pytestmark = [pytest.mark.ui, pytest.mark.timeout(300)]  # some hundred pages, of a theme with many scripts

#: Finds elements that run scripts or load foreign resources, whether or not they have acted yet.
WRONG = """(page) => {
  const found = [];
  if (window.__xss !== undefined) found.push("a script ran");
  for (const one of page.querySelectorAll("*")) {
    if (one.tagName === "SCRIPT" && one.textContent.includes("__xss")) found.push("a script would run");
    for (const {name, value} of one.attributes) {
      if (name.startsWith("on")) found.push(`${one.tagName} ${name}`);
      if (["href", "src", "action", "formaction", "data"].includes(name)) {
        let address;
        try { address = new URL(value, location.href); } catch { continue; }
        const leads = one.tagName === "A" || one.tagName === "AREA";
        if (!["http:", "https:", "mailto:"].includes(address.protocol)) found.push(`${one.tagName} ${name}=${value}`);
        else if (address.host !== location.host && !leads) found.push(`${one.tagName} ${name}=${value}`);
        else if (leads && address.host !== location.host && !(one.rel || "").includes("no")) found.push(`followed ${value}`);
      }
    }
  }
  return found;
}"""

ANY_ERROR = ""  # is contained in each, because `Watched` notes them


@dataclass
class Watched:
    """A browser window, a client that runs no scripts, and a list of violations."""

    page: Any
    client: Client
    address: str
    trouble: list[str] = field(default_factory=list)
    here: str = ""

    def __post_init__(self) -> None:
        self.page.on(
            "console", lambda one: self.note(f"console: {one.text}") if one.type == "error" else None
        )
        self.page.on("pageerror", lambda error: self.note(f"script: {error}"))
        self.page.on("dialog", self._dialog)
        self.page.context.on("request", self.asked)

    def note(self, what: str) -> None:
        self.trouble.append(f"{self.here}: {what[:300]}")

    def _dialog(self, dialog: Any) -> None:
        self.note("a dialog")
        dialog.dismiss()

    def asked(self, request: Any) -> None:
        parts = urlsplit(request.url)
        if parts.scheme != "data" and f"{parts.scheme}://{parts.netloc}" != self.address:
            self.note(f"asked {request.url}")

    def visit(self, where: str) -> int:
        self.here = where
        answer = self.page.goto(where, wait_until="load")
        return self._judged(answer.status, self.page.evaluate(f"() => ({WRONG})(document)"))

    def read(self, where: str) -> int:
        """Parse a page without opening it, and find what would run."""
        self.here = where
        answer = self.client.get(where, follow=True, headers={"host": urlsplit(self.address).netloc})
        parsed = f"text => ({WRONG})(new DOMParser().parseFromString(text, 'text/html'))"
        return self._judged(answer.status_code, self.page.evaluate(parsed, answer.content.decode()))

    def _judged(self, status: int, found: list[str]) -> int:
        for wrong in found:
            if wrong != f"followed {django_settings.ORCHESTRATOR_FLOWER_URL}":  # ours
                self.note(wrong)
        if status >= 500:
            self.note(f"answered {status}")
        return status


@pytest.fixture
def window(database: None) -> Iterator[Watched]:
    """A superuser's, who sees every tenant."""
    root = create_superuser()
    with pages.page_of(root, ANY_ERROR) as first:
        page = first.context.new_page()
        watched = Watched(page, browser_of(root), pages.shared_address())
        yield watched
        page.context.remove_listener("request", watched.asked)


#: Models whose pages have scripts of ours besides those of the theme, and one of the others.
OPENED = (Pipeline, Schedule, Activity)
#: Tables of packages that no tenant writes to.
OF_THE_PLATFORM = {"auth", "django_celery_beat"}


def rows_of_admin() -> list[tuple[type, Any]]:
    """Return every model of the admin with one of its rows."""
    found = []
    with system_scope():
        for model in admin.site._registry:
            row = model._base_manager.order_by("pk").first()
            if row is not None and model._meta.app_label not in OF_THE_PLATFORM:
                found.append((model, row))
    return found


def test_hostile_text_in_the_admin_runs_and_loads_nothing(api_objects: ApiObjects, window: Watched) -> None:
    """The others have no other scripts than the opened ones, so they are read as a browser reads."""
    with write_everywhere() as written:
        tables = rows_of_admin()
        pages_of = {model: (list_url(model), page_url(row)) for model, row in tables}
        opened = [where for model in OPENED for where in pages_of.pop(model)]
        answers = {window.visit(where) for where in ("/", *opened)}
        answers |= {window.read(where) for addresses in pages_of.values() for where in addresses}

    assert window.trouble == []
    assert answers == {200}
    assert len(tables) > 50
    assert sum(map(len, written.values())) > 150, "it was written nearly everywhere"


def test_parsing_a_page_finds_what_would_run(window: Watched) -> None:
    window.visit("/login/")
    found = window.page.evaluate(
        f"text => ({WRONG})(new DOMParser().parseFromString(text, 'text/html'))", "".join(SHORT[:3])
    )

    assert {"a script would run", "svg onload", "IMG onerror"} <= set(found)


def items(questions: Questions) -> Iterator[Activity]:
    """Create items of every kind with hostile text in every field."""
    text, short = LONG, SHORT[1]
    yield questions.gate(LINE, name=SHORT[6])
    yield questions.gate(text, name=SHORT[0], description=text[:3000], params={SHORT[2]: text})
    yield questions.task(SHORT[5], human_role="editor", description=text, metadata={SHORT[3]: text})
    yield questions.approval(SHORT[8], options=(SHORT[9], SHORT[4]), asked_by=SHORT[10])
    yield questions.review(text[:3000], text, human_role="editor")
    yield questions.blocker(text[:3000], type=short)
    yield questions.subtask(SHORT[13][:200], description=text[:3000], human_role="editor")
    yield questions.escalation(f"{text[:3000]}{LINE[:5000]}")


def test_hostile_text_in_items_runs_and_loads_nothing(
    questions: Questions, window: Watched, api: Any
) -> None:
    made = list(items(questions))
    tenant = f"?tenant={questions.tenant.slug}"
    with system_scope():
        outputs = list(
            Activity.objects.exclude(output_ref=None).values_list("pk", "output_ref").order_by("created_at")
        )
    activities = [f"/activities/{each.parent_id or each.pk}/{tenant}" for each in made]
    texts = [f"/activities/{pk}/texts/{tenant}" for pk, _ in outputs[:3]]
    searches = [f"{INBOX}{tenant}&{urlencode({'search': each})}" for each in SHORT[:3]]
    of_outputs = [f"/admin/activities/activity/{pk}/output/{ref}/" for pk, ref in outputs[:2]]
    addresses = [f"/{tenant}", INBOX + tenant, *(f"{INBOX}{each.pk}/{tenant}" for each in made)]
    addresses += [kind.pop() for kind in (activities, texts, searches)]
    addresses += [f"/activities/{tenant}&{urlencode({'q': each})}" for each in ("", f"odd:{SHORT[0][:200]}")]
    addresses += [
        f"/activities/bulk/{tenant}&q=status:open",
        f"/runs/{tenant}",
        f"/login/?{urlencode({'next': SHORT[4]})}",
        "/admin/providers/",  # last, because what is read next must keep to its policy
    ]
    of_admin = [*of_outputs, "/admin/break-glass/"]

    answers = {window.visit(where) for where in addresses}
    answers |= {window.read(where) for where in (*activities, *texts, *searches, *of_admin)}
    faulty = "status of 400"  # the response to the invalid query
    assert [each for each in window.trouble if faulty not in each] == []
    assert answers == {200, 400}

    window.trouble.clear()
    missing = [
        f"/nowhere/{quote(SHORT[0])}",
        f"/admin/nowhere/{quote(SHORT[0])}",
        f"/api/v1/{quote(SHORT[0])}",
    ]
    assert {window.visit(where) for where in missing} == {404}
    assert [each for each in window.trouble if "status of 404" not in each] == []


def test_the_policy_alone_blocks_hostile_markup(window: Watched) -> None:
    """Were a text once not escaped, the browser would still not run it, and nobody elsewhere would hear of it."""
    with socket.create_server(("127.0.0.1", 0)) as elsewhere:
        there = f"//127.0.0.1:{elsewhere.getsockname()[1]}"
        nasty = f"""<img src={there}/p.png onerror="window.__xss=1"><script>window.__xss=1</script><base href={there}/>
            <form action={there}/ id=f></form><iframe src={there}/></iframe><link rel=stylesheet href={there}/s.css>
            <a id=j href="javascript:window.__xss=1">j</a>"""
        for where in ("/", INBOX, "/admin/", "/api/v1/docs/", "/nowhere"):
            window.visit(where)
            window.trouble.clear()
            window.page.evaluate(
                """html => { document.body.append(document.createRange().createContextualFragment(html));
                document.getElementById("j").click(); document.getElementById("f").submit(); }""",
                nasty,
            )
            assert window.page.evaluate("window.__xss === undefined")
            refused = [each for each in window.trouble if "Content Security Policy" in each]
            assert len(refused) >= 5, f"the browser says what it refuses: {window.trouble}"
        # Browsers open connections in advance to where they will not go after all. Nothing is said there.
        received = b""
        while select.select([elsewhere], [], [], 0.2)[0]:
            connection, _ = elsewhere.accept()
            with connection:
                received += connection.recv(1) if select.select([connection], [], [], 0.2)[0] else b""
    assert received == b""
