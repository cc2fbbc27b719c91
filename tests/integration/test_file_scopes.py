"""Work on common files, or in one group of a tenant, never runs at once, and no work waits for its files for ever."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from activities import admission, file_scopes
from activities.admission import Closed, Exchange, keys, scripts
from activities.admission.exchange import Offer
from activities.models import Activity
from tenants.context import tenant_scope
from tenants.models import Tenant
from tenants.redis import client
from tests.cases import in_one_test
from tests.engine import Engine
from tests.integration.test_admission import GENERATION, A, B, Desk, offer


@pytest.fixture
def desk(database: None) -> Desk:
    client().delete(keys.pointer())
    desk = Desk()
    desk.put(pools={"qa": "qa", "dev": "qa"}, **{f"pair__*__{role}": 100 for role in ("qa", "dev")})
    return desk


def offer_on(*files: str, **more: Any) -> Offer:
    return offer(**more)._replace(files=tuple(sorted({*map(file_scopes.normalise_path, files)})))


def may_overlap(one: str, other: str) -> bool:
    text = (scripts.FOLDER / "files.lua").read_text(encoding="utf-8")
    call = f"{text}\nreturn files_may_meet(ARGV[1], ARGV[2], 'acme') and 1 or 0"
    pair = file_scopes.normalise_path(one), file_scopes.normalise_path(other)
    there, back = (client().eval(call, 0, *each) for each in (pair, pair[::-1]))
    assert there == back
    return bool(there)


@pytest.mark.parametrize(
    ("one", "other", "overlap"),
    [
        ("src/a.py", "src/a.py", True), ("./src//a.py", "/src/a.py", True), ("src/a.py", "src/b.py", False),
        ("src/**", "src/a.py", True), ("src/**", "src/lib/deep/a.py", True), ("src/**", "docs/a.md", False),
        ("src/**", "srcs/a.py", False), ("src", "src/a.py", True), ("src/", "src/lib/a.py", True), ("src", "source", False),
        ("src/*.py", "src/a.py", True), ("src/*.py", "src/a.md", False), ("src/*.py", "src/*.md", False), ("src/a*", "src/*z", True),
        ("src/a*", "src/b*", False), ("src/?.py", "src/a.py", True), ("src/[ab].py", "src/b.py", True),
        ("src/[slug].tsx", "src/x.py", False),
        ("**/*.py", "src/lib/a.py", True), ("**/*.py", "**/*.md", False), ("**/*.py", "README.md", False), ("**/*.py", "src", True),
        ("src/**/test_*.py", "src/lib/test_a.py", True), ("src/**/test_*.py", "src/lib/a.py", False), ("src/**/x", "docs/**/x", False),
        ("**", "anything/at/all", True), (".", "a.py", True), ("src/*", "src/lib/a.py", True), ("src/{a,b}.py", "src/c.md", True),
        ("src/{a,b}.py", "docs/c.md", False), ("v1.2/", "v1.2/a.py", True), ("ab", "abc*", False),
    ],
)  # fmt: skip
def test_patterns_overlap_if_a_common_path_may_match_both(
    desk: Desk, one: str, other: str, overlap: bool
) -> None:
    assert may_overlap(one, other) is overlap


def matches(pattern: str, path: str) -> bool:
    """The meaning of a pattern: `*` and `?` match within a part, `**` any number of parts, and a plain path also as a folder."""
    pieces = []
    for part in file_scopes.normalise_path(pattern).split("/"):
        if part == "**":
            pieces.append("(?:[^/]+/)*")
        else:
            pieces.append(re.escape(part).replace(r"\*", "[^/]*").replace(r"\?", "[^/]") + "/")
    below = "" if pattern.rsplit("/", 1)[-1].find(".", 1) > 0 else "(?:[^/]+/)*"
    return re.fullmatch("".join(pieces) + below, path + "/") is not None


def test_random_patterns_with_a_common_path_always_overlap(desk: Desk) -> None:
    chance = random.Random(7)
    parts = ["a", "b", "ab", "*", "a*", "*b", "?", "**", "a.py", "*.py", "b.md"]
    paths = ["/".join([*chance.choices(["a", "b", "ab", "aab"], k=chance.randint(0, 3)), chance.choice(["a", "a.py", "b.md", "ab.py"])])
             for _ in range(120)]  # fmt: skip
    overlapping = 0
    for _ in range(400):
        one, other = ("/".join(chance.choices(parts, k=chance.randint(1, 3))) for _ in range(2))
        if any(matches(one, path) and matches(other, path) for path in paths):
            overlapping += 1
            assert may_overlap(one, other), (one, other)
    assert overlapping > 50


def many_paths(number: int) -> list[str]:
    """Return paths that differ only in their last of many parts, from those of all other numbers."""
    return ["a/" * 100 + f"{number}-{place}.py" for place in range(100)]


def test_one_call_of_a_script_compares_few_paths_of_a_tenant(desk: Desk) -> None:
    text = (scripts.FOLDER / "files.lua").read_text(encoding="utf-8")
    call = f"""{text}
        local large = files_may_meet(ARGV[1], ARGV[2], "acme")
        return {{ large and 1 or 0, files_may_meet("a", "b", "acme") and 1 or 0, files_may_meet("a", "b", "other") and 1 or 0 }}"""

    answers = client().eval(call, 0, "\n".join(many_paths(1)), "\n".join(many_paths(2)))

    assert answers == [1, 1, 0]  # what is not compared counts as overlapping


def test_work_on_too_many_paths_to_compare_runs_in_sequence(desk: Desk) -> None:
    waiting = [offer_on(*many_paths(number)) for number in range(6)]

    granted = [*desk.grants(*waiting, offer_on("b.py", tenant=B))]
    assert {grant.tenant_id for grant in granted} == {A, B}
    mine = [grant for grant in granted if grant.tenant_id == A]
    in_order = list(mine)
    while mine:
        mine = list(desk.grants(release=mine))
        in_order += mine

    assert [grant.activity_id for grant in in_order] == [each.activity_id for each in waiting]


def test_overlapping_work_of_a_tenant_runs_in_sequence_in_any_role(desk: Desk) -> None:
    wide, narrow, elsewhere = (
        offer_on("src/**"),
        offer_on("src/a.py", role="dev"),
        offer_on("docs/**", role="dev"),
    )

    first = desk.grants(wide)
    beside = desk.grants(narrow, elsewhere, offer_on("src/a.py", tenant=B))
    state = admission.inspect(narrow.activity_id)
    then = desk.grants(release=first)

    assert {grant.tenant_id for grant in beside} == {A, B}
    assert narrow.activity_id not in {grant.activity_id for grant in beside}
    assert (state["at"][:6], state["holder"]) == ("files:", str(wide.activity_id))
    assert [grant.activity_id for grant in then] == [narrow.activity_id]


def test_waiting_wide_work_is_not_overtaken_by_later_narrow_work(desk: Desk) -> None:
    (running,) = desk.grants(offer_on("src/a.py", waited=50))
    wide = offer_on("src/**", waited=40)
    desk.grants(wide)

    later = [offer_on(f"src/{number}.py", waited=30 - number, role="dev") for number in range(3)]
    free = offer_on("docs/**", waited=1)
    beside = desk.grants(*later, free)
    state = admission.inspect(later[0].activity_id)
    (next_grant,) = desk.grants(release=[running])
    after = desk.grants(release=[next_grant])

    assert [grant.activity_id for grant in beside] == [free.activity_id]
    assert state["holder"] == str(wide.activity_id)
    assert next_grant.activity_id == wide.activity_id
    assert {grant.activity_id for grant in after} == {item.activity_id for item in later}


@pytest.mark.parametrize(("wide_role", "narrow_role"), [("qa", "dev"), ("dev", "qa")])
def test_wide_work_keeps_its_place_when_urgent_work_takes_its_files(
    desk: Desk, wide_role: str, narrow_role: str
) -> None:
    running = desk.grants(offer_on("src/a.py", waited=50))
    wide, narrow = (
        offer_on("src/**", role=wide_role, waited=40),
        offer_on("src/b.py", role=narrow_role, waited=30),
    )
    desk.grants(wide)
    desk.grants(narrow)

    urgent = desk.grants(offer_on("src/a.py", priority=1), release=running)
    then = desk.grants(release=urgent)

    assert len(urgent) == 1
    assert [grant.activity_id for grant in then] == [wide.activity_id]


def test_paused_wide_work_does_not_delay_narrow_work(desk: Desk) -> None:
    (running,) = desk.grants(offer_on("src/a.py", waited=50))
    wide, narrow = offer_on("src/**", waited=40), offer_on("src/b.py", role="dev")
    desk.grants(wide)
    desk.cap("role:qa", 0)  # paused

    assert [grant.activity_id for grant in desk.grants(narrow)] == [narrow.activity_id]
    assert desk.grants(release=[running]) == []


def test_narrow_work_starts_while_the_role_of_wide_work_has_no_seat(desk: Desk) -> None:
    desk.put(pools={"qa": "qa", "dev": "dev"}, seat__dev=1)
    (running,) = desk.grants(offer_on("src/a.py", waited=50))
    wide, narrow = offer_on("src/**", role="dev", waited=40), offer_on("src/b.py", waited=30)
    assert desk.grants(wide) == desk.grants(narrow) == []
    assert len(desk.grants(offer(B, role="dev"))) == 1  # takes the only seat

    assert [grant.activity_id for grant in desk.grants(release=[running])] == [narrow.activity_id]


def test_work_that_ignores_pauses_waits_only_for_its_files(desk: Desk) -> None:
    running = desk.grants(offer_on("src/a.py"))
    desk.put(**{f"tenant:{A}": 0, f"past:tenant:{A}": "none"})  # type: ignore[arg-type]
    blocked, free = (offer_on(path)._replace(run_now_at=datetime.now(UTC)) for path in ("src/**", "docs/**"))

    assert [grant.activity_id for grant in desk.grants(blocked, free)] == [free.activity_id]
    assert [grant.activity_id for grant in desk.grants(release=running)] == [blocked.activity_id]


def test_a_claim_on_files_ends_with_its_activity(desk: Desk) -> None:
    desk.grants(offer_on("src/a.py", waited=50))
    wide, narrow = offer_on("src/**", waited=40), offer_on("src/b.py")
    desk.grants(wide)
    assert desk.grants(narrow) == []

    granted = admission.exchange(admission.Exchange(withdrawals=[wide.activity_id]))

    assert [grant.activity_id for grant in granted] == [narrow.activity_id]


def test_only_so_many_waiting_activities_of_a_tenant_claim_files(desk: Desk) -> None:
    (holder,) = desk.grants(offer_on("src/**"))
    desk.grants(*(offer_on(f"src/{number}.py") for number in range(40)))

    assert client().hlen(f"{keys.generation(GENERATION)}claims:{A}") == 32, "each claim costs Redis time"
    assert len(desk.grants(release=[holder])) == 40


def withdraw(item: Offer) -> Exchange:
    return Exchange(withdrawals=[item.activity_id])


def make_background(item: Offer) -> Exchange:
    return Exchange(offers=[item._replace(priority=20)])


def make_less_urgent(item: Offer) -> Exchange:
    return Exchange(offers=[item._replace(priority=12)])


@pytest.mark.parametrize("change", [withdraw, make_background, make_less_urgent])
def test_a_claim_moves_to_the_next_activity_when_its_first_one_leaves(
    desk: Desk, change: Callable[[Offer], Exchange]
) -> None:
    desk.grants(offer_on("src/a.py", waited=90))
    first, second = offer_on("src/**", waited=80), offer_on("src/**", waited=20)
    between = offer_on("src/b.py", role="dev", waited=50)
    desk.grants(first, second)
    assert desk.grants(between) == []

    granted = admission.exchange(change(first))

    assert [grant.activity_id for grant in granted] == [between.activity_id]
    scripts.check_structure()


@pytest.mark.parametrize("urgent", [False, True])
def test_a_claim_moves_forward_with_a_new_first_activity(desk: Desk, urgent: bool) -> None:
    """The new first activity is older or more urgent than the others."""
    running = desk.grants(offer_on("src/a.py", waited=90))
    desk.grants(offer_on("src/**", waited=20))
    first = offer_on("src/**", priority=11, waited=60)
    desk.grants(first._replace(priority=15) if urgent else first)
    desk.grants(first)

    beside = desk.grants(offer_on("src/b.py", role="dev", waited=25))
    then = desk.grants(release=running)

    assert beside == []
    assert [grant.activity_id for grant in then] == [first.activity_id]
    scripts.check_structure()


def test_narrow_work_with_a_new_first_activity_before_the_claim_starts(desk: Desk) -> None:
    desk.grants(offer_on("src/a.py", waited=90))
    desk.grants(offer_on("src/**", waited=50), offer_on("src/b.py", role="dev", waited=40))
    before = offer_on("src/b.py", role="dev", waited=60)

    granted = desk.grants(before)

    assert [grant.activity_id for grant in granted] == [before.activity_id]
    scripts.check_structure()


@pytest.mark.parametrize(
    ("family", "field", "value"),
    [
        ("claims", "*", "3|1"),  # belongs to another first waiter
        ("claims", f"{A}|dev|3|", "3|1"),  # belongs to nobody
        ("holders", "digest", "activity"),  # belongs to nothing that runs
        ("holders", "*", None),
        ("files", "*", None),
        ("file_uses", "*", None),
        ("files", f"{A}|{file_scopes.digest_of(['src/**'])}", None),
        ("file_uses", f"{A}|{file_scopes.digest_of(['src/**'])}", None),
    ],
    ids=["a late claim", "a claim of nobody", "a holder that does not run", "no holder", "no files", "no uses",
         "no files of what waits", "no uses of what waits"],
)  # fmt: skip
def test_inconsistent_keys_about_files_are_detected(
    desk: Desk, family: str, field: str, value: str | None
) -> None:
    desk.grants(offer_on("src/a.py", waited=50), offer_on("src/**", waited=40))
    scripts.check_structure()
    key = keys.generation(GENERATION) + (family if family.startswith("file") else f"{family}:{A}")

    for name in client().hkeys(key) if field == "*" else [field]:
        client().hdel(key, name) if value is None else client().hset(key, name, value)

    with pytest.raises(Closed):
        scripts.check_structure()


def test_a_tenant_wide_group_covers_its_roles_and_no_other_tenant(desk: Desk) -> None:
    def in_group(**more: Any) -> Offer:
        return offer(group="repo-x", **more)._replace(group_scope="tenant")

    first = desk.grants(in_group(), in_group(role="dev"))
    others = desk.grants(in_group(tenant=B), offer(role="dev", group="repo-x"))
    desk.cap(f"groups:{A}:*", 2)

    assert (len(first), len(others), len(desk.grants())) == (1, 2, 1)


def test_finished_work_on_files_leaves_no_keys_behind(desk: Desk) -> None:
    grants = desk.grants(
        offer_on("src/**"), offer_on("src/a.py"), offer_on("src/b.py", "docs/**", role="dev")
    )
    while grants:
        grants = desk.grants(release=grants)

    remaining = {name.decode().rsplit(":", 1)[-1] for name in client().keys(f"{keys.pointer()}:*")}
    assert not {"files", "file_uses", "parked", "tenants"} & remaining
    assert not client().keys(f"{keys.pointer()}:*holders:*") + client().keys(f"{keys.pointer()}:*claims:*")


# --- Through the API ---


def submit(api: Any, **more: Any) -> Any:
    return api().post("/api/v1/activities/", {"name": "Edit", "agent_role": "qa", **more})


def test_work_submitted_with_files_and_a_group_waits_for_their_holder(
    api: Any, engine: Engine, acme: Tenant
) -> None:
    first = submit(api, files=["src/**", "./src/**"], group_key="r", group_scope="tenant").json()
    second = submit(api, files=["src/a.py"], agent_role="dev").json()
    third = submit(api, group_key="r", group_scope="tenant", agent_role="seo").json()
    why = {each["id"]: api().get(f"/api/v1/activities/{each['id']}/why/").json() for each in (second, third)}

    assert (first["files"], first["group_scope"]) == (["src/**"], "tenant")
    assert engine.messages() == 1
    assert {each["code"] for each in why.values()} == {"group_cap"}
    assert first["id"] in why[second["id"]]["holder"]
    assert "all roles in the group r" in why[third["id"]]["holder"]
    engine.drain()
    assert {engine.status(acme, each["id"]) for each in (first, second, third)} == {"done"}


@in_one_test(
    ("body", "path", "words"),
    [
        ({"files": "src"}, "files", "list"),
        ({"files": ["ok", "../etc", 5, "a\\b", " ", "x" * 301]}, "files[1]", "must not contain .."),
        ({"files": ["ok", "../etc", 5, "a\\b", " ", "x" * 301]}, "files[5]", "300"),
        ({"files": ["a"] * 101}, "files", "100"),
        ({"group_scope": "tenant"}, "group_scope", "group_key"),
        ({"group_key": "x", "group_scope": "world"}, "group_scope", "role, tenant"),
        ({"agent_role": None, "human_role": "editor", "files": ["a"]}, "files", "agent"),
    ],
)
def test_every_fault_of_files_and_groups_is_named_by_its_path(
    api: Any, engine: Engine, acme: Tenant, body: dict[str, Any], path: str, words: str
) -> None:
    answer = submit(api, **body)

    assert answer.status_code == 400
    assert words in {fault["path"]: fault["message"] for fault in answer.json()["errors"]}[path]


def test_a_wiped_redis_still_protects_the_files_of_running_work(engine: Engine, acme: Tenant) -> None:
    from activities.admission import rebuilding

    running: list[Any] = []

    def wipe(request: Any) -> Any:
        running.append(request.name)
        if len(running) == 1:
            for name in client().keys(f"{keys.pointer()}*"):
                client().delete(name)
            rebuilding.rebuild()
            engine.submit(acme, "dev", files=["src/a.py"])
            engine.submit(acme, "seo", group_key="g", group_scope="tenant")
            assert engine.messages() == 0
        return before(request)

    before, engine.agent.behaviour = engine.agent.behaviour, wipe
    engine.submit(acme, files=["src/**"], group_key="g", group_scope="tenant")
    engine.drain()

    assert len(running) == 3


def test_the_successor_of_reassigned_work_has_its_files(engine: Engine, acme: Tenant) -> None:
    from activities import reassignment

    (activity_id,) = engine.submit(acme, files=["src/**"], group_key="g", group_scope="tenant")
    successor = reassignment.reassign(acme.pk, activity_id, actor="test", reason="other", agent_role="dev")

    with tenant_scope(acme.pk):
        activity = Activity.objects.get(pk=successor.pk)
    assert (activity.files, activity.group_scope) == (["src/**"], "tenant")
