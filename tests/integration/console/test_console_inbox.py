"""The inbox: who sees which items, their order, and the filters."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from django.conf import settings as django_settings
from django.contrib.auth.models import User
from django.db import connections
from django.http import HttpResponse
from django.test import Client
from django.test.utils import CaptureQueriesContext

from activities import reassignment
from activities.models import Activity, ActivityEvent
from activities.submission import NewActivity, submit
from console.labels import KINDS
from tenants.context import tenant_scope
from tenants.models import Tenant
from tests.browsing import visible_text
from tests.cases import in_one_test
from tests.console_user import INBOX, Person
from tests.engine import Engine
from tests.questions import Questions


def names(answer: HttpResponse) -> list[str]:
    """The names of the list, in its order."""
    return re.findall(r'<bdi class="name">(.*?)</bdi>', answer.content.decode())


def row(answer: HttpResponse, name: str) -> str:
    """What the list says about one item."""
    for match in re.findall(r'<li class="row.*?</li>', answer.content.decode(), re.DOTALL):
        if f">{name}</bdi>" in match:
            return " ".join(re.sub(r"<[^>]+>", " ", match).split())
    raise AssertionError(f"{name} is not listed")


def _tasks(tenant: Tenant, *tasks: NewActivity) -> None:
    with tenant_scope(tenant.pk):
        submit(list(tasks), actor="token:planner")


# Who sees what


def test_an_anonymous_visitor_is_sent_to_the_login(client: Client, database: None) -> None:
    answer = client.get(f"{INBOX}?kind=gate")

    assert (answer.status_code, answer["Location"]) == (302, "/login/?next=/inbox/%3Fkind%3Dgate")


def test_an_empty_inbox_says_what_will_appear(ann: Person) -> None:
    page_text = visible_text(ann.get())

    assert "The inbox is empty." in page_text
    assert "Results that need approval" in page_text


def test_items_of_every_kind_are_in_one_list(questions: Questions, ann: Person) -> None:
    items = {
        "gate": questions.gate(), "approval": questions.approval(), "review": questions.review(), "resolution": questions.blocker(),
        "task": questions.task(), "escalation": questions.escalation(),
    }  # fmt: skip

    page = ann.get()

    assert items.keys() == KINDS.keys()
    assert sorted(names(page)) == sorted(item.name for item in items.values())
    for kind, item in items.items():
        assert row(page, item.name).startswith(KINDS[kind][0])
        assert names(ann.get(f"{INBOX}?kind={kind}")) == [item.name]


def test_a_reassigned_blocker_is_listed_and_opened_as_one(questions: Questions, ann: Person) -> None:
    blocker = questions.blocker()
    successor = reassignment.reassign(
        questions.tenant.pk, blocker.pk, actor="user:ann", reason="Yours.", human_role="editor"
    )

    assert names(ann.get(f"{INBOX}?kind=resolution")) == [successor.name]
    assert names(ann.get(f"{INBOX}?kind=task")) == []
    assert '<span class="tag resolution">Blocker</span>' in ann.look(successor).content.decode()


def test_a_row_shows_requester_assignee_and_age(questions: Questions, ann: Person) -> None:
    questions.gate_of_step(), questions.task(human_role="editor")
    with tenant_scope(questions.tenant.pk):
        Activity.objects.filter(name="Call the customer").update(
            created_at=datetime.now(UTC) - timedelta(hours=3)
        )

    page = ann.get()

    assert "dev asks reviewer" in row(page, "Approve: Write")
    assert "planner (token) asks editor for 3 h" in row(page, "Call the customer")


def test_a_human_step_is_requested_by_its_pipeline(questions: Questions, ann: Person) -> None:
    from pipelines import submission, versions

    versions.save(
        questions.tenant.pk,
        {"key": "p", "name": "Visit", "steps": [{"id": "call", "human_role": "sales"}]},
        actor="t",
    )
    submission.start_run(questions.tenant.pk, "p", submission.NewRun(), actor="token:planner")

    assert "pipeline Visit asks sales" in row(ann.get(), "call")


def test_a_member_sees_items_of_their_tenant_only(
    questions: Questions, other_tenant: Tenant, ann: Person
) -> None:
    _tasks(other_tenant, NewActivity(name="theirs", human_role="editor"))
    theirs = _only(other_tenant)

    assert "theirs" not in visible_text(ann.get())
    assert ann.browser.get(f"{INBOX}?tenant={other_tenant.slug}").status_code == 404
    assert ann.browser.get(f"{INBOX}{theirs.pk}/").status_code == 404
    assert ann.browser.get(f"{INBOX}{theirs.pk}/?tenant={other_tenant.slug}").status_code == 404


def test_work_of_agents_is_not_an_item(engine: Engine, tenant: Tenant, ann: Person) -> None:
    (work,) = engine.submit(tenant)

    assert ann.browser.get(f"{INBOX}{work}/").status_code == 404


def test_a_member_of_several_tenants_chooses_one(
    tenant: Tenant, other_tenant: Tenant, person: Callable[..., Person]
) -> None:
    _tasks(tenant, NewActivity(name="ours", human_role="editor"))
    _tasks(other_tenant, NewActivity(name="theirs", human_role="editor"))
    both = person("bo", tenant, other_tenant)

    assert names(both.get()) == ["ours"]
    page = both.get(f"{INBOX}?tenant={other_tenant.slug}")
    assert names(page) == ["theirs"]
    assert f'<a href="/inbox/?tenant={tenant.slug}"' in page.content.decode()


def test_a_user_without_a_tenant_is_told_so(tenant: Tenant, person: Callable[..., Person]) -> None:
    nobody = person("nobody")
    with tenant_scope(tenant.pk):
        tenant.__class__.objects.filter(pk=tenant.pk).update(is_active=False)

    assert "You are not a member of any tenant." in visible_text(nobody.get())


def test_a_superuser_chooses_among_tenants_with_open_items(
    tenant: Tenant, other_tenant: Tenant, root: Person
) -> None:
    _tasks(tenant, NewActivity(name="one", human_role="editor"))
    _tasks(other_tenant, *(NewActivity(name=f"two {n}", human_role="editor") for n in range(3)))

    page_text = visible_text(root.get())

    assert page_text.index("globex 3") < page_text.index("acme 1")
    assert names(root.get(f"{INBOX}?tenant=acme")) == ["one"]
    assert "Another tenant" in visible_text(root.get(f"{INBOX}?tenant=acme"))


def test_a_superuser_without_break_glass_access_is_led_to_its_form(tenant: Tenant) -> None:
    """The login that `make up` prints is such a superuser."""
    _tasks(tenant, NewActivity(name="one", human_role="editor"))
    sam = Person(User.objects.create_superuser("sam", "sam@example.com", "a long password"))
    (door,) = re.findall(r'href="(/admin/break-glass/\?tenant=[^"]+)"', sam.get().content.decode())

    form = sam.get(door)
    assert 'value="acme"' in form.content.decode()
    fields = {"tenant": "acme", "reason": "The newcomer looks around."}
    sam.browser.post(door, {**fields, "csrfmiddlewaretoken": str(form.context["csrf_token"])})

    assert f'href="{INBOX}?tenant=acme"' in sam.get("/admin/break-glass/").content.decode()
    assert f'href="{INBOX}?tenant=acme"' in sam.get("/tenants/").content.decode()
    assert names(sam.get(f"{INBOX}?tenant=acme")) == ["one"]


def test_only_superusers_see_the_list_of_tenants(tenant: Tenant, other_tenant: Tenant, ann: Person) -> None:
    _tasks(other_tenant, NewActivity(name="theirs", human_role="editor"))

    answer = ann.browser.get("/tenants/")
    assert (answer.status_code, answer["Location"]) == (302, "/")


def test_the_overview_leads_to_the_inbox(tenant: Tenant, ann: Person) -> None:
    assert f'<a href="/inbox/?tenant={tenant.slug}"' in ann.get("/").content.decode()


# Order, filters, pages


def test_overdue_items_come_first_then_priority_then_age(tenant: Tenant, ann: Person) -> None:
    past = datetime.now(UTC) - timedelta(minutes=5)
    _tasks(
        tenant,
        NewActivity(name="old", human_role="editor"),
        NewActivity(name="new", human_role="editor"),
        NewActivity(name="urgent", human_role="editor", priority=1),
        NewActivity(name="late", human_role="editor", priority=20, due_at=past),
        NewActivity(name="soon", human_role="editor", due_at=past + timedelta(hours=1)),
    )

    page = ann.get()

    assert names(page) == ["late", "urgent", "old", "new", "soon"]
    assert "overdue by 5 min" in row(page, "late")
    assert "due in 54 min" in row(page, "soon")
    assert "urgent" in row(page, "urgent")


def test_filters_of_the_list_are_query_parameters(tenant: Tenant, person: Callable[..., Person]) -> None:
    _tasks(
        tenant,
        NewActivity(name="Read the text", human_role="editor", description="about bees"),
        NewActivity(name="Read the bees' contract", human_role="legal"),
        NewActivity(name="Call", human_role="sales"),
    )
    eva = person("eva", role="reviewer", human_roles=["editor", "sales"])

    assert names(eva.get(f"{INBOX}?role=mine")) == ["Read the text", "Call"]
    assert names(eva.get(f"{INBOX}?role=legal")) == ["Read the bees&#x27; contract"]
    both = f"{INBOX}?search=bees+read&role=everybody"
    assert names(eva.get(both)) == ["Read the text", "Read the bees&#x27; contract"]
    assert names(eva.get(f"{INBOX}?search=100%25")) == []
    assert "No items match this view. Show all" in visible_text(eva.get(f"{INBOX}?search=wasps"))


def test_the_list_starts_with_items_that_the_member_may_decide(
    questions: Questions, person: Callable[..., Person]
) -> None:
    questions.task("Read the text", human_role="editor")
    questions.task("Sign it", human_role="legal")
    questions.task("Say yes", human_role="reviewer")
    failure = questions.escalation().name
    everything = ["Read the text", "Say yes", "Sign it", failure]

    def listed_for(name: str, **membership: Any) -> list[str]:
        who = person(name, **membership)
        assert sorted(names(who.get(f"{INBOX}?role=everybody"))) == sorted(everything)
        page = who.get()
        listed = sorted(names(page))
        assert listed == sorted(names(who.get(f"{INBOX}?role=mine")))
        assert page.context["inbox"].total == len(listed)
        hidden = len(everything) - len(listed)
        assert page.context["inbox"].hidden == hidden
        assert (f"{hidden} more" in visible_text(page)) == bool(hidden and listed)
        return listed

    assert listed_for("eva", role="reviewer", human_roles=["editor"]) == ["Read the text", "Say yes"]
    assert listed_for("rob", role="reviewer") == ["Read the text", "Say yes", "Sign it"], (
        "a reviewer does not decide failures"
    )
    assert listed_for("ole", role="operator", human_roles=["editor"]) == [failure, "Read the text", "Say yes"]
    assert listed_for("ann", role="admin") == sorted(everything)
    assert listed_for("vic", role="viewer") == sorted(everything), "a viewer sees all items"
    assert listed_for("sam", role="reviewer", human_roles=["sales"]) == ["Say yes"]


def test_an_empty_list_says_how_many_items_others_have(
    questions: Questions, person: Callable[..., Person]
) -> None:
    questions.task("Sign it", human_role="legal")

    page_text = visible_text(person("tom", role="reviewer", human_roles=["sales"]).get())

    assert "Nothing waits for you. 1 is for others. Show all" in page_text


def test_every_link_keeps_the_filters(tenant: Tenant, ann: Person) -> None:
    _tasks(tenant, *(NewActivity(name=f"bee & {n}", human_role="editor") for n in range(51)))

    text = ann.get(f"{INBOX}?role=editor&search=bee+%26").content.decode()

    kept = "tenant=acme&amp;role=editor&amp;search=bee+%26"
    assert re.search(rf'href="/inbox/[0-9a-f-]{{36}}/\?{re.escape(kept)}#item"', text)
    assert f'href="/inbox/?{kept}&amp;page=2"' in text
    assert f'href="/inbox/?{kept.replace("&amp;role", "&amp;kind=task&amp;role")}"' in text


def test_a_long_list_has_pages_and_a_total(tenant: Tenant, ann: Person) -> None:
    _tasks(tenant, *(NewActivity(name=f"task {n:03}", human_role="editor") for n in range(60)))

    first, second = ann.get(), ann.get(f"{INBOX}?page=2")

    assert names(first) + names(second) == [f"task {n:03}" for n in range(60)]
    assert "Inbox 60" in visible_text(first)


@in_one_test(
    "view",
    [
        "kind=nonsense",
        "page=0",
        "page=-1",
        "page=x",
        "page=1e3",
        "page=99999999999",
        "page=0000000019999999999999999999",
    ],
)
def test_an_invalid_filter_is_not_found(view: str, ann: Person) -> None:
    assert ann.browser.get(f"{INBOX}?{view}").status_code == 404


def test_control_characters_in_a_filter_do_no_harm(ann: Person) -> None:
    ann.get(f"{INBOX}?search=%00%27%22%3E&role=%00x")


def test_counts_follow_role_and_search_but_not_the_chosen_kind(questions: Questions, ann: Person) -> None:
    questions.gate(), questions.task(human_role="editor"), questions.task("Other", human_role="legal")

    assert "All 3 Gates 1 Tasks 2" in visible_text(ann.get(f"{INBOX}?kind=gate"))
    assert "All 1 Tasks 1" in visible_text(ann.get(f"{INBOX}?role=legal"))
    assert "All 1 Tasks 1" in visible_text(ann.get(f"{INBOX}?search=other"))


# What looking costs, and does


def test_the_pages_need_the_same_queries_for_any_number_of_items(questions: Questions, ann: Person) -> None:
    def queries(address: str) -> int:
        with CaptureQueriesContext(connections["default"]) as captured:
            ann.get(address)
        return len(captured)

    gate, small = questions.gate_of_step(), questions.approval(linked=1)
    ann.get()
    few = queries(INBOX), queries(f"{INBOX}{gate.pk}/"), queries(f"{INBOX}{small.pk}/")

    large = questions.approval(linked=20)
    for number in range(4):
        questions.gate_of_step(), questions.review(), questions.blocker(f"Blocker {number}")
    _tasks(questions.tenant, *(NewActivity(name=f"task {n}", human_role="editor") for n in range(20)))
    many = queries(INBOX), queries(f"{INBOX}{gate.pk}/"), queries(f"{INBOX}{large.pk}/")

    assert many == few
    assert few[0] <= 16  # ten of them identify the user


def test_reading_the_pages_changes_nothing(questions: Questions, ann: Person) -> None:
    items = [questions.gate(), questions.review(), questions.escalation()]

    def facts() -> Any:
        with tenant_scope(questions.tenant.pk):
            events = ActivityEvent.objects.count()
            return events, list(Activity.objects.order_by("pk").values_list("pk", "status", "version"))

    before = facts()
    for _ in range(3):
        ann.get()
        for item in items:
            ann.look(item, "?action=approve&notes=x&version=1")

    assert facts() == before


@in_one_test("method", ["put", "delete", "patch"])
def test_other_methods_are_refused(method: str, ann: Person, questions: Questions) -> None:
    assert getattr(ann.browser, method)(INBOX).status_code in (403, 405)
    assert ann.browser.get("/inbox/approve/").status_code == 405


def test_the_policy_allows_only_our_own_scripts(questions: Questions, ann: Person) -> None:
    item = questions.gate("![x](https://evil.example/x.png)")

    for answer in (ann.get(), ann.look(item)):
        policy, text = answer["Content-Security-Policy"], answer.content.decode()
        assert "default-src 'none'" in policy
        assert "script-src 'self'; connect-src 'self'" in policy
        assert "unsafe" not in policy
        scripts = re.findall(r"<script\b([^>]*)>(.*?)</script>", text, flags=re.DOTALL)
        assert 'src="/static/console/inbox.js" defer' in {tag.strip() for tag, _ in scripts}
        assert all("src=" in tag and not inside for tag, inside in scripts), "no script stands in the page"
        assert not re.findall(r"\s(?:on\w+|style)=", re.sub(r">[^<]*<", "><", text))
        assert all(each.startswith("/static/") for each in re.findall(r'\ssrc="([^"]+)"', text))


def test_scripts_send_requests_only_to_their_own_server() -> None:
    folder = Path(django_settings.BASE_DIR) / "console" / "static" / "console"

    for script in folder.glob("*.js"):
        text = script.read_text(encoding="utf-8")
        assert not re.search(
            r"https?:|fetch\((?!ownAddress\()|XMLHttpRequest|import\b(?!Node)|eval\b|innerHTML|insertAdjacent",
            text,
        )


def _only(tenant: Tenant) -> Activity:
    with tenant_scope(tenant.pk):
        match: Activity = Activity.objects.get()
    return match
