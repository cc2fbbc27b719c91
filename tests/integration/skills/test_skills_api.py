"""Skills over the API: admins create, change and delete them, and each change is a version."""

from __future__ import annotations

from threading import Event
from typing import Any

from agents.api.skills import MOST_SKILLS
from agents.models import Skill
from tenants.context import tenant_scope
from tenants.models import Tenant
from tests.answers import problem, version_of
from tests.cases import in_one_test
from tests.engine import eventually, simultaneously, somebody_waits_for_a_lock
from tests.integration.skills.knowledge import CLIENT, TONE

SKILLS = "/api/v1/skills/"


def paths(response: Any) -> set[str]:
    return {fault["path"] for fault in problem(response, 400, "validation_failed")["errors"]}


def test_a_skill_can_be_created_read_changed_and_deleted(api: Any, tenant: Tenant) -> None:
    client = api()

    created = client.post(SKILLS, TONE)
    changed = client.put(
        f"{SKILLS}tone/", {**without_key(TONE), "content": "Be brief.", "roles": ["qa", "dev", "qa"]}
    )
    current = client.get(f"{SKILLS}tone/")
    deleted = client.delete(f"{SKILLS}tone/")

    assert (created.status_code, created["Location"], version_of(created)) == (201, f"{SKILLS}tone/", "1")
    assert {
        **TONE,
        "kind": "skill",
        "roles": [],
        "enabled": True,
        "version": 1,
    }.items() <= created.json().items()
    assert (changed.json()["roles"], changed.json()["version"]) == (["dev", "qa"], 2)
    assert changed.json()["updated_at"] > created.json()["updated_at"]
    assert current.json() == changed.json()
    assert (deleted.status_code, deleted.content) == (204, b"")
    problem(client.get(f"{SKILLS}tone/"), 404, "not_found")


def without_key(body: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in body.items() if name != "key"}


def test_putting_an_equal_skill_makes_no_new_version(api: Any, tenant: Tenant) -> None:
    client = api()
    client.post(SKILLS, TONE)

    again = client.put(f"{SKILLS}tone/", without_key(TONE))

    assert (again.status_code, again.json()["version"]) == (200, 1)


def test_fields_missing_in_a_put_get_their_defaults(api: Any, tenant: Tenant) -> None:
    client = api()
    client.post(SKILLS, {**TONE, "kind": "context", "roles": ["qa"], "enabled": False})

    changed = client.put(f"{SKILLS}tone/", {"name": "Tone", "content": "Be kind."}).json()

    assert (changed["description"], changed["kind"], changed["roles"], changed["enabled"]) == (
        "",
        "skill",
        [],
        True,
    )


def test_the_list_has_no_texts_and_can_be_filtered(api: Any, tenant: Tenant) -> None:
    client = api()
    for body in (
        TONE,
        CLIENT,
        {**TONE, "key": "layout", "roles": ["dev"]},
        {**TONE, "key": "old", "enabled": False},
    ):
        client.post(SKILLS, body)

    def keys(query: str) -> list[str]:
        return [item["key"] for item in client.get(f"{SKILLS}?{query}").json()["results"]]

    assert keys("") == ["client", "layout", "old", "tone"]
    assert keys("kind=context") == ["client"]
    assert keys("enabled=false") == ["old"]
    assert keys("role=qa") == ["client", "old", "tone"]
    assert keys("search=acm&ordering=-key") == ["client"]
    assert "content" not in client.get(SKILLS).json()["results"][0]
    problem(client.get(f"{SKILLS}?colour=red"), 400, "validation_failed")


@in_one_test(
    ("changes", "path"),
    [
        ({"key": "../tone"}, "key"), ({"key": "Tone"}, "key"), ({"key": "tone\nof-voice"}, "key"), ({"key": "x" * 64}, "key"),
        ({"key": None}, "key"), ({"name": ""}, "name"), ({"content": ""}, "content"), ({"content": 5}, "content"),
        ({"content": "x" * 100_001}, "content"), ({"description": "x" * 1_001}, "description"), ({"kind": "tool"}, "kind"),
        ({"roles": "qa"}, "roles"), ({"roles": ["qa", "nobody"]}, "roles[1]"), ({"roles": [5]}, "roles[0]"),
        ({"enabled": "yes"}, "enabled"), ({"version": 3}, "version"),
    ],
)  # fmt: skip
def test_an_invalid_skill_is_refused_with_its_path(
    api: Any, tenant: Tenant, changes: dict[str, Any], path: str
) -> None:
    assert path in paths(api().post(SKILLS, {**TONE, **changes}))
    with tenant_scope(tenant.pk):
        assert not Skill.objects.exists()


def test_the_key_of_a_skill_is_unique(api: Any, tenant: Tenant) -> None:
    clients = [api(name=f"n{number}") for number in range(4)]

    answers = simultaneously(*[lambda c=client: c.post(SKILLS, TONE) for client in clients])

    assert sorted(answer.status_code for answer in answers) == [201, 409, 409, 409]
    problem(clients[0].post(SKILLS, {**TONE, "name": "Another"}), 409, "already_exists")


def test_the_number_of_skills_is_limited(api: Any, tenant: Tenant) -> None:
    with tenant_scope(tenant.pk):
        Skill.objects.bulk_create(
            Skill(tenant=tenant, **{**TONE, "key": f"s{number}"}) for number in range(MOST_SKILLS)
        )

    problem(api().post(SKILLS, TONE), 409, "too_many_skills")


def test_two_skills_at_once_do_not_exceed_the_limit(api: Any, tenant: Tenant) -> None:
    with tenant_scope(tenant.pk):
        Skill.objects.bulk_create(
            Skill(tenant=tenant, **{**TONE, "key": f"s{number}"}) for number in range(MOST_SKILLS - 1)
        )
    client, created = api(), Event()

    def create() -> None:
        with tenant_scope(tenant.pk):
            Skill.objects.create(tenant=tenant, **{**TONE, "key": "last"})
            created.set()
            eventually(somebody_waits_for_a_lock)

    def post() -> Any:
        assert created.wait(60)
        return client.post(SKILLS, TONE)

    _, answer = simultaneously(create, post)

    problem(answer, 409, "too_many_skills")


def test_a_skill_with_an_old_version_cannot_be_changed_or_deleted(api: Any, tenant: Tenant) -> None:
    client = api()
    client.post(SKILLS, TONE)
    body = without_key(TONE)

    def put(content: str) -> Any:
        return api(name=content).put(
            f"{SKILLS}tone/", {**body, "content": content}, headers={"If-Match": '"1"'}
        )

    answers = simultaneously(*[lambda c=content: put(c) for content in "abcd"])

    assert sorted(answer.status_code for answer in answers) == [200, 412, 412, 412]
    problem(client.delete(f"{SKILLS}tone/", headers={"If-Match": '"1"'}), 412, "precondition_failed")
    assert client.delete(f"{SKILLS}tone/", headers={"If-Match": '"2"'}).status_code == 204


def test_concurrent_changes_are_separate_versions(api: Any, tenant: Tenant) -> None:
    client = api()
    client.post(SKILLS, TONE)
    clients = [api(name=f"n{number}") for number in range(5)]

    simultaneously(
        *[
            lambda c=each, n=number: c.put(f"{SKILLS}tone/", {**without_key(TONE), "content": f"text {n}"})
            for number, each in enumerate(clients)
        ]
    )

    assert client.get(f"{SKILLS}tone/").json()["version"] == 6


def test_one_of_concurrent_deletions_succeeds(api: Any, tenant: Tenant) -> None:
    clients = [api(name=f"n{number}") for number in range(3)]
    clients[0].post(SKILLS, TONE)

    answers = simultaneously(*[lambda c=client: c.delete(f"{SKILLS}tone/") for client in clients])

    assert sorted(answer.status_code for answer in answers) == [204, 404, 404]


def test_only_admins_of_the_tenant_change_skills(api: Any, tenant: Tenant, other_tenant: Tenant) -> None:
    api().post(SKILLS, TONE)
    stranger = api(tenant=other_tenant)

    assert problem(api("operator").post(SKILLS, TONE), 403, "forbidden")["required_role"] == "admin"
    problem(api("operator").delete(f"{SKILLS}tone/"), 403, "forbidden")
    assert api("viewer").get(f"{SKILLS}tone/").status_code == 200
    assert stranger.get(SKILLS).json()["results"] == []
    for answer in (
        stranger.get(f"{SKILLS}tone/"),
        stranger.put(f"{SKILLS}tone/", without_key(TONE)),
        stranger.delete(f"{SKILLS}tone/"),
    ):
        problem(answer, 404, "not_found")
