"""Skills are made, changed and deleted by admins, each change counted."""

from __future__ import annotations

from typing import Any

import pytest

from agents.api.skills import MOST_SKILLS
from agents.models import Skill
from tenants.context import tenant_scope
from tenants.models import Tenant
from tests.engine import at_once
from tests.integration.skills.knowledge import CLIENT, TONE
from tests.integration.test_api_access import problem

SKILLS = "/api/v1/skills/"


def paths(response: Any) -> set[str]:
    return {fault["path"] for fault in problem(response, 400, "validation_failed")["errors"]}


def test_a_skill_is_made_read_changed_and_deleted(api: Any, tenant: Tenant) -> None:
    client = api()

    made = client.post(SKILLS, TONE)
    changed = client.put(
        f"{SKILLS}tone/", {**without_key(TONE), "content": "Be brief.", "roles": ["qa", "dev", "qa"]}
    )
    read = client.get(f"{SKILLS}tone/")
    deleted = client.delete(f"{SKILLS}tone/")

    assert (made.status_code, made["Location"], made["ETag"]) == (201, f"{SKILLS}tone/", '"1"')
    assert {
        **TONE,
        "kind": "skill",
        "roles": [],
        "enabled": True,
        "version": 1,
    }.items() <= made.json().items()
    assert (changed.json()["roles"], changed.json()["version"]) == (["dev", "qa"], 2)
    assert changed.json()["updated_at"] > made.json()["updated_at"]
    assert read.json() == changed.json()
    assert (deleted.status_code, deleted.content) == (204, b"")
    problem(client.get(f"{SKILLS}tone/"), 404, "not_found")


def without_key(body: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in body.items() if name != "key"}


def test_putting_what_is_there_already_is_no_new_version(api: Any, tenant: Tenant) -> None:
    client = api()
    client.post(SKILLS, TONE)

    again = client.put(f"{SKILLS}tone/", without_key(TONE))

    assert (again.status_code, again.json()["version"]) == (200, 1)


def test_what_a_put_leaves_out_is_emptied(api: Any, tenant: Tenant) -> None:
    client = api()
    client.post(SKILLS, {**TONE, "kind": "context", "roles": ["qa"], "enabled": False})

    shown = client.put(f"{SKILLS}tone/", {"name": "Tone", "content": "Be kind."}).json()

    assert (shown["description"], shown["kind"], shown["roles"], shown["enabled"]) == ("", "skill", [], True)


def test_the_list_leaves_the_texts_out_and_can_be_narrowed(api: Any, tenant: Tenant) -> None:
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


@pytest.mark.parametrize(
    ("changes", "path"),
    [
        ({"key": "../tone"}, "key"), ({"key": "Tone"}, "key"), ({"key": "tone\nof-voice"}, "key"), ({"key": "x" * 64}, "key"),
        ({"key": None}, "key"), ({"name": ""}, "name"), ({"content": ""}, "content"), ({"content": 5}, "content"),
        ({"content": "x" * 100_001}, "content"), ({"description": "x" * 1_001}, "description"), ({"kind": "tool"}, "kind"),
        ({"roles": "qa"}, "roles"), ({"roles": ["qa", "nobody"]}, "roles[1]"), ({"roles": [5]}, "roles[0]"),
        ({"enabled": "yes"}, "enabled"), ({"version": 3}, "version"),
    ],
)  # fmt: skip
def test_a_skill_that_is_none_is_refused_by_path(
    api: Any, tenant: Tenant, changes: dict[str, Any], path: str
) -> None:
    assert path in paths(api().post(SKILLS, {**TONE, **changes}))
    with tenant_scope(tenant.pk):
        assert not Skill.objects.exists()


def test_a_key_is_taken_once(api: Any, tenant: Tenant) -> None:
    clients = [api(name=f"n{number}") for number in range(4)]

    answers = at_once(*[lambda c=client: c.post(SKILLS, TONE) for client in clients])

    assert sorted(answer.status_code for answer in answers) == [201, 409, 409, 409]
    problem(clients[0].post(SKILLS, {**TONE, "name": "Another"}), 409, "already_exists")


def test_there_may_not_be_any_number_of_skills(api: Any, tenant: Tenant) -> None:
    with tenant_scope(tenant.pk):
        Skill.objects.bulk_create(
            Skill(tenant=tenant, **{**TONE, "key": f"s{number}"}) for number in range(MOST_SKILLS)
        )

    problem(api().post(SKILLS, TONE), 409, "too_many_skills")


def test_what_has_changed_since_it_was_read_is_not_changed_or_deleted(api: Any, tenant: Tenant) -> None:
    client = api()
    client.post(SKILLS, TONE)
    body = without_key(TONE)

    def put(content: str) -> Any:
        return api(name=content).put(
            f"{SKILLS}tone/", {**body, "content": content}, headers={"If-Match": '"1"'}
        )

    answers = at_once(*[lambda c=content: put(c) for content in "abcd"])

    assert sorted(answer.status_code for answer in answers) == [200, 412, 412, 412]
    problem(client.delete(f"{SKILLS}tone/", headers={"If-Match": '"1"'}), 412, "precondition_failed")
    assert client.delete(f"{SKILLS}tone/", headers={"If-Match": '"2"'}).status_code == 204


def test_changes_at_once_are_counted_one_by_one(api: Any, tenant: Tenant) -> None:
    client = api()
    client.post(SKILLS, TONE)
    clients = [api(name=f"n{number}") for number in range(5)]

    at_once(
        *[
            lambda c=each, n=number: c.put(f"{SKILLS}tone/", {**without_key(TONE), "content": f"text {n}"})
            for number, each in enumerate(clients)
        ]
    )

    assert client.get(f"{SKILLS}tone/").json()["version"] == 6


def test_of_two_who_delete_it_at_once_the_second_finds_nothing(api: Any, tenant: Tenant) -> None:
    clients = [api(name=f"n{number}") for number in range(3)]
    clients[0].post(SKILLS, TONE)

    answers = at_once(*[lambda c=client: c.delete(f"{SKILLS}tone/") for client in clients])

    assert sorted(answer.status_code for answer in answers) == [204, 404, 404]


def test_only_an_admin_of_the_tenant_changes_skills(api: Any, tenant: Tenant, other_tenant: Tenant) -> None:
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
