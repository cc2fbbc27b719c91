"""The pages of dead letters: similar failures are grouped, replayed after a preview, and keep a history."""

from __future__ import annotations

from collections.abc import Callable
from uuid import UUID

import pytest

from activities.models import Activity, DeadLetter
from agents.exceptions import PermanentAgentError
from tenants.context import tenant_scope
from tenants.models import AuditEntry, Tenant
from tests.browsing import visible_text
from tests.console_user import Person, refusal_notice, send_form
from tests.engine import Engine
from tests.failed_work import create_dead_letters, letters_of, submit_failing
from tests.forms import forms_of

LETTERS = "/dead-letters/"


@pytest.fixture
def broken(engine: Engine, tenant: Tenant) -> list[UUID]:
    """Three activities with the same failure."""
    engine.serve(tenant)
    return submit_failing(engine, tenant, count=3)


@pytest.fixture
def address(tenant: Tenant, broken: list[UUID]) -> str:
    """The page of their group of failures."""
    return f"{LETTERS}{letters_of(tenant, *broken)[0].fingerprint}/"


def states(tenant: Tenant, ids: list[UUID]) -> list[str]:
    return [letter.state for letter in letters_of(tenant, *ids)]


def test_similar_failures_are_grouped_with_a_sample(
    engine: Engine, tenant: Tenant, broken: list[UUID], ann: Person
) -> None:
    submit_failing(
        engine, tenant, "dev", error=PermanentAgentError("Page 7 is <b>empty</b>.", code="empty_page")
    )

    page = ann.get(LETTERS)

    assert [
        (group.newest.error.get("code", ""), group.newest.agent_role, group.count, group.open)
        for group in page.context["groups"]
    ] == [
        ("broken", "qa", 3, 3),
        ("empty_page", "dev", 1, 1),
    ]
    assert "Page 7 is &lt;b&gt;empty&lt;/b&gt;." in page.content.decode()


def test_the_list_is_filtered_by_role_and_state(
    engine: Engine, tenant: Tenant, broken: list[UUID], ann: Person
) -> None:
    assert "There are no open failures." in visible_text(ann.get(f"{LETTERS}?role=dev"))
    with tenant_scope(tenant.pk):
        DeadLetter.objects.update(state="closed")

    assert "There are no open failures." in visible_text(ann.get(LETTERS))
    assert "broken It broke." in visible_text(ann.get(f"{LETTERS}?state=all"))


@pytest.mark.parametrize("role", ["", "qa"])
def test_the_filter_shows_the_role_by_which_the_list_is_filtered(
    role: str, broken: list[UUID], ann: Person
) -> None:
    forms = forms_of(ann.get(f"{LETTERS}?role={role}"))

    (shown,) = [form.fields["role"] for form in forms.values() if "state" in form.fields]
    assert shown == [role]


def test_a_replay_is_previewed_and_replays_what_was_counted(
    engine: Engine, tenant: Tenant, broken: list[UUID], address: str, ann: Person
) -> None:
    counted = forms_of(ann.get(address))["replay"].send(
        ann.browser, ("action", "count_replay"), per_second="2"
    )

    assert "3 would be retried" in visible_text(counted)
    assert "At 2 per second the last one starts after 1 s." in visible_text(counted)
    assert states(tenant, broken) == ["open"] * 3, "counting starts nothing"

    later = submit_failing(engine, tenant)  # fails alike, after the count
    answer = forms_of(counted)["confirmation"].send(ann.browser, ("action", "replay"))
    page = ann.get(answer["Location"])

    assert "Retried: 3" in visible_text(page)
    assert states(tenant, broken) == ["replayed"] * 3
    assert states(tenant, later) == ["open"], "what was not counted is not replayed"
    (replay,) = page.context["history"]
    assert (replay.by, replay.state, replay.count, replay.live) == ("user:ann", "replayed", 3, 3)
    with tenant_scope(tenant.pk):
        entry = AuditEntry.objects.for_tenant(tenant).order_by("-number")[0]
    assert (entry.operation, entry.actor_name) == ("POST /dead-letters/replay/", "ann")


def test_the_history_shows_the_outcome_of_a_replay(
    engine: Engine, tenant: Tenant, broken: list[UUID], address: str, ann: Person
) -> None:
    counted = forms_of(ann.get(address))["replay"].send(ann.browser, ("action", "count_replay"))
    forms_of(counted)["confirmation"].send(ann.browser, ("action", "replay"))
    engine.drain()

    assert "3 succeeded" in visible_text(ann.get(address))
    assert "ann retried 3 3 succeeded" in visible_text(ann.get(LETTERS))


def test_one_failure_is_retried_once(
    engine: Engine, tenant: Tenant, broken: list[UUID], address: str, ann: Person
) -> None:
    form, letter = forms_of(ann.get(address))["single"], letters_of(tenant, *broken)[0]

    answer = form.send(ann.browser, ("letter", str(letter.pk)))
    assert "Retried: work" in visible_text(ann.get(answer["Location"]))
    assert sorted(states(tenant, broken)) == ["open", "open", "replayed"]

    assert "This dead letter was already replayed by user:ann" in refusal_notice(
        form.send(ann.browser, ("letter", str(letter.pk))), 409
    )


def test_dismissing_needs_a_reason_and_a_confirmation(
    engine: Engine, tenant: Tenant, broken: list[UUID], address: str, ann: Person
) -> None:
    form = forms_of(ann.get(address))["dismiss"]

    lacking_reason = form.send(ann.browser, ("action", "count_dismiss"))
    assert "reason" in refusal_notice(lacking_reason, 400)
    assert 'name="reason" rows="2" maxlength="2000" aria-invalid="true"' in lacking_reason.content.decode()

    counted = form.send(ann.browser, ("action", "count_dismiss"), reason="Nobody needs it.")
    assert "3 would be dismissed" in visible_text(counted)
    forms_of(counted)["confirmation"].send(ann.browser, ("action", "dismiss"))
    with tenant_scope(tenant.pk):
        rows = Activity.objects.filter(pk__in=broken).values_list("status", "cancel_reason")
        assert set(rows) == {("cancelled", "Nobody needs it.")}


def test_an_invalid_rate_is_refused_and_kept_in_the_form(
    engine: Engine, tenant: Tenant, broken: list[UUID], address: str, ann: Person
) -> None:
    answer = forms_of(ann.get(address))["replay"].send(
        ann.browser, ("action", "count_replay"), per_second="quick"
    )

    assert "must be a number above 0" in refusal_notice(answer, 400)
    assert 'value="quick" aria-invalid="true"' in answer.content.decode()
    assert (
        "nan"
        in forms_of(
            forms_of(ann.get(address))["replay"].send(
                ann.browser, ("action", "count_replay"), per_second="nan"
            )
        )["replay"].fields["per_second"]
    )


def test_a_viewer_sees_failures_and_changes_nothing(
    tenant: Tenant, broken: list[UUID], address: str, ann: Person, person: Callable[..., Person]
) -> None:
    vic = person("vic", role="viewer")
    page = vic.get(address)
    assert "Only operators may retry or dismiss failures." in visible_text(page)
    assert {"replay", "dismiss"}.isdisjoint(forms_of(page))

    answer = send_form(vic, forms_of(ann.get(address))["replay"], action="count_replay")

    assert "This needs the role operator" in refusal_notice(answer, 403)
    assert states(tenant, broken) == ["open"] * 3


def test_failures_of_another_tenant_are_not_shown(
    tenant: Tenant, other_tenant: Tenant, address: str, person: Callable[..., Person]
) -> None:
    otto = person("otto", other_tenant)

    assert otto.browser.get(address).status_code == 404
    assert otto.browser.get(f"{address}?tenant=acme").status_code == 404
    assert "There are no open failures." in visible_text(otto.get(LETTERS))


def test_the_pages_need_few_queries_for_hundreds_of_failures(
    tenant: Tenant, ann: Person, queries_of: Callable[..., list[str]]
) -> None:
    ids = create_dead_letters(tenant, 200)
    address = f"{LETTERS}{letters_of(tenant, ids[0])[0].fingerprint}/"

    for each in (LETTERS, address):
        queries = queries_of(ann, each)
        assert len(queries) <= 12, queries
    assert "Older" in visible_text(ann.get(address))
    assert len(ann.get(f"{address}?page=4").context["letters"]) == 50
    assert ann.browser.get(f"{address}?page=0").status_code == 404


def test_quoted_text_separates_groups_and_is_shown(engine: Engine, tenant: Tenant, ann: Person) -> None:
    engine.serve(tenant)
    for message in ("no title in row 7", "no title in row 12", "no body in row 1"):
        submit_failing(
            engine, tenant, error=PermanentAgentError(f'HTTP 422: {{"error": "{message}"}}', code="refused")
        )

    groups = ann.get(LETTERS).context["groups"]
    page = visible_text(ann.get(f"{LETTERS}{groups[0].newest.fingerprint}/"))

    assert [group.count for group in groups] == [2, 1]
    assert "no title in row 7" in page
    assert "no title in row 12" in page
    assert "no body" not in page
