"""The workload of tenants during the faults: what they submit, decide, cancel, pause and follow, and the answers that they got.

Every thread has its own source of random numbers, so the seed decides what is requested; the machine decides when. A client repeats a
request with its key until it has a definite answer, as the API's documentation advises.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx2

ROLES = ("keyword-researcher", "site-auditor", "report-writer", "blog-writer")
CAPS = {"keyword-researcher": 3, "site-auditor": 2, "report-writer": 4, "blog-writer": 3}
ROLE_CAPS = {"site-auditor": 4}  # over all tenants
TENANT_CAPS = {"east": 6}
TENANTS = ("north", "east", "south")
CANARY = "canary"
CANARY_ROLE = "content-brief-writer"
TIMEOUT_SECONDS = 8  # of a run
SCHEDULE_SECONDS = 4

#: Statuses that neither a correct request nor an outage explains.
UNEXPECTED = frozenset({400, 401, 403, 404, 415, 422, 500})

PIPELINES: dict[str, dict[str, Any]] = {
    "chaos-flow": {
        "key": "chaos-flow",
        "name": "Flow",
        "steps": [
            {"id": "plan", "agent_role": "keyword-researcher"},
            {"id": "left", "agent_role": "site-auditor", "depends_on": ["plan"]},
            {"id": "right", "agent_role": "report-writer", "depends_on": ["plan"]},
            {
                "id": "each",
                "agent_role": "blog-writer",
                "depends_on": ["plan"],
                "for_each": "steps.plan.data.items",
            },
            {"id": "join", "agent_role": "report-writer", "depends_on": ["left", "right", "each"]},
            {"id": "gate", "human_role": "editor", "is_approval_gate": True, "depends_on": ["join"]},
            {"id": "publish", "agent_role": "blog-writer", "depends_on": ["gate"]},
        ],
    },
    "chaos-review": {
        "key": "chaos-review",
        "name": "Review",
        "steps": [
            {"id": "write", "agent_role": "blog-writer", "requires_approval": True},
            {"id": "publish", "agent_role": "keyword-researcher", "depends_on": ["write"]},
        ],
    },
}


@dataclass
class Request:
    """One request of a client with the answers to all its attempts. `ids` are those of successful answers."""

    tenant: str
    what: str
    name: str
    key: str | None
    began: float
    statuses: list[int] = field(default_factory=list)  # 0: no answer
    ids: list[str] = field(default_factory=list)
    acknowledged: float | None = None
    body: dict[str, Any] = field(default_factory=dict)

    @property
    def last(self) -> int:
        return self.statuses[-1] if self.statuses else 0


@dataclass
class Decision:
    """One answer to a question, and its result."""

    tenant: str
    item: str
    kind: str
    verb: str
    by: str
    at: float
    status: int
    code: str = ""
    contested: bool = False


@dataclass
class Streamed:
    """The events of one stream, over all its connections."""

    tenant: str
    ids: list[int] = field(default_factory=list)
    connections: int = 0
    resets: int = 0


@dataclass
class Canary:
    """One small activity that measures when work flows."""

    id: str
    sent: float
    acknowledged: float
    done: float | None = None


class Caller:
    """A client with a token. `counted` counts answers by status."""

    def __init__(self, base: str, tenant: str, name: str, token: str, counted: Counter[int]) -> None:
        self.tenant, self.name, self._counted = tenant, name, counted
        self.http = httpx2.Client(
            base_url=f"{base}/api/v1",
            headers={"Authorization": f"Bearer {token}", "Accept": "application/json"},
            timeout=httpx2.Timeout(12, connect=4),
            trust_env=False,
        )
        self.unexpected: list[str] = []

    def send(self, method: str, path: str, *, body: Any = None, key: str | None = None) -> tuple[int, Any]:
        """Return status and body of one attempt; the status is 0 without an answer."""
        try:
            answer = self.http.request(
                method, path, json=body, headers={"Idempotency-Key": key} if key else {}
            )
        except httpx2.HTTPError:
            self._counted[0] += 1
            return 0, {}
        self._counted[answer.status_code] += 1
        if answer.status_code in UNEXPECTED and len(self.unexpected) < 20:
            self.unexpected.append(
                f"{answer.status_code} to {method} {path} at {time.time():.1f}: {answer.text[:300]}"
            )
        try:
            return answer.status_code, answer.json()
        except ValueError:
            return answer.status_code, {}

    def get(self, path: str) -> Any:
        """Return the body of a successful GET, or None."""
        status, body = self.send("GET", path)
        return body if status == 200 else None


class Workload:
    """All clients of all tenants. `begin` starts them, `quieten` ends those that create work, `end` ends all."""

    def __init__(
        self, base: str, tokens: dict[str, dict[str, str]], *, seed: int, load: float, pipelines: bool
    ) -> None:
        self.base, self.seed, self.load, self.with_pipelines = base, seed, load, pipelines
        self.counted: Counter[int] = Counter()
        self.requests: list[Request] = []
        self.decisions: list[Decision] = []
        self.streams: list[Streamed] = []
        self.canaries: list[Canary] = []
        self.cancelled: Counter[str] = Counter()
        self.schedules: dict[str, list[str]] = {}
        self.failures: list[str] = []  # errors of these threads, which are errors of the harness
        self._quiet, self._ended = threading.Event(), threading.Event()
        self._creators: list[threading.Thread] = []
        self._others: list[threading.Thread] = []
        self._tokens = tokens
        self._known: dict[str, list[str]] = {tenant: [] for tenant in TENANTS}
        self._flows: dict[str, list[str]] = {tenant: [] for tenant in TENANTS}
        self._callers: list[Caller] = []
        self._viewers: dict[str, Caller] = {}

    def caller(self, tenant: str, role: str, name: str = "") -> Caller:
        made = Caller(self.base, tenant, name or role, self._tokens[tenant][role], self.counted)
        self._callers.append(made)
        return made

    def viewer(self, tenant: str) -> Caller:
        if tenant not in self._viewers:
            self._viewers[tenant] = self.caller(tenant, "viewer")
        return self._viewers[tenant]

    @property
    def unexpected(self) -> list[str]:
        return [line for caller in self._callers for line in caller.unexpected]

    def begin(self) -> None:
        for tenant in TENANTS:
            self._thread(self._creators, self._submits, tenant)
            self._thread(self._creators, self._operates, tenant)
            self._thread(self._others, self._decides, tenant)
            self._thread(self._others, self._follows, tenant)
        self._thread(self._others, self._sends_canaries)

    def quieten(self) -> None:
        """Stop creating work. Decisions continue."""
        self._quiet.set()
        for thread in self._creators:
            thread.join(60)

    def end(self) -> None:
        self._quiet.set()
        self._ended.set()
        # A thread that waits for the next event of a stream is not awaited longer.
        deadline = time.monotonic() + 15
        for thread in (*self._creators, *self._others):
            thread.join(max(0.0, deadline - time.monotonic()))

    def burst(self, number: int) -> None:
        """Submit this many activities at once, from all tenants."""
        callers = [self.caller(tenant, "operator", "burst") for tenant in TENANTS]
        chance = random.Random(f"{self.seed}:burst:{len(self.requests)}")
        stamp = f"{time.time():.0f}"

        def submit(caller: Caller, numbers: range) -> None:
            for each in numbers:
                self._submit_one(caller, chance, f"burst-{stamp}-{each}", patience=20)

        threads = [
            threading.Thread(
                target=submit, args=(callers[part % len(callers)], range(part, number, 8)), daemon=True
            )
            for part in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(40)

    # Creating work.

    def _submits(self, tenant: str) -> None:
        caller, chance = self.caller(tenant, "operator"), random.Random(f"{self.seed}:{tenant}:submits")
        number = 0
        while not self._quiet.wait(chance.expovariate(1.6 * self.load)):
            number += 1
            drawn = chance.random()
            mark = f"{tenant}-{number}"
            if self.with_pipelines and drawn < 0.12:
                self._start_flow(caller, chance, mark)
            elif drawn < 0.18:
                self._submit_same(caller, chance, mark)
            elif drawn < 0.23:
                self._ask_about_many(caller, chance, mark)
            else:
                self._submit_one(caller, chance, mark)

    def _submit_one(
        self, caller: Caller, chance: random.Random, mark: str, patience: float = 60.0
    ) -> Request:
        options: dict[str, Any] = {"mark": mark}
        body: dict[str, Any] = {
            "name": f"work {mark}",
            "agent_role": chance.choice(ROLES),
            "priority": chance.choice((1, 3, 10, 10, 10, 18)),
            "params": {"chaos": options},
        }
        drawn = chance.random()
        if drawn < 0.08:
            body["group_key"] = options["group"] = f"{caller.tenant}-{chance.choice('abc')}"
            body["agent_role"] = "report-writer"
        elif drawn < 0.16:
            body["not_before"] = (datetime.now(UTC) + timedelta(seconds=chance.uniform(2, 15))).isoformat()
        elif drawn < 0.22:
            body["requires_approval"] = True
        elif drawn < 0.40:
            options["ask"] = chance.choice(
                ("create_subtask", "request_human_review", "report_blocker", "create_approval")
            )
        keyed = chance.random() < 0.85
        request = self._request(caller, "submit", f"work {mark}", f"key-{mark}" if keyed else None, body)
        self._post(caller, request, "/activities/", patience)
        self._known[caller.tenant] += request.ids
        return request

    def _submit_same(self, caller: Caller, chance: random.Random, mark: str) -> None:
        """Submit two activities with the same dedup_key at once."""
        key = f"same-{caller.tenant}-{chance.randrange(6)}"
        body = {
            "name": f"same {mark}",
            "agent_role": chance.choice(ROLES),
            "dedup_key": key,
            "params": {"chaos": {"mark": mark}},
        }
        requests = [
            self._request(caller, "dedup", f"same {mark}", f"{mark}-{turn}", body) for turn in range(2)
        ]
        _together(
            *(lambda request=request: self._post(caller, request, "/activities/", 30) for request in requests)
        )

    def _ask_about_many(self, caller: Caller, chance: random.Random, mark: str) -> None:
        """Submit three activities and one question about all of them."""
        ids: list[str] = []
        for number in range(3):
            body = {
                "name": f"held {mark}-{number}",
                "agent_role": chance.choice(ROLES),
                "not_before": (datetime.now(UTC) + timedelta(seconds=chance.uniform(1, 6))).isoformat(),
                "params": {"chaos": {"mark": f"{mark}-{number}"}},
            }
            request = self._request(caller, "submit", body["name"], f"key-{mark}-{number}", body)
            self._post(caller, request, "/activities/", 30)
            ids += request.ids
        if len(ids) == 3:
            question = {"type": "content_direction", "title": f"about {mark}", "activity_ids": ids}
            request = self._request(caller, "approval", f"about {mark}", f"key-{mark}-ask", question)
            self._post(caller, request, "/approvals/", 30)

    def _start_flow(self, caller: Caller, chance: random.Random, mark: str) -> None:
        key = chance.choice(list(PIPELINES))
        body = {"params": {"chaos": {"mark": mark}}, "priority": chance.choice((3, 10, 15))}
        request = self._request(caller, "flow", f"flow {mark}", f"key-{mark}", body)
        self._post(caller, request, f"/pipelines/{key}/runs/", 60)
        self._flows[caller.tenant] += request.ids

    def _operates(self, tenant: str) -> None:
        """Cancel, change, pause and retry work until there is no new work."""
        caller, chance = (
            self.caller(tenant, "admin", "operator"),
            random.Random(f"{self.seed}:{tenant}:operates"),
        )
        number = 0
        while not self._quiet.wait(chance.uniform(1.0, 3.0)):
            number += 1
            drawn, known, key = chance.random(), self._known[tenant], f"op-{tenant}-{number}"
            if drawn < 0.40 and known:
                status, _ = caller.send(
                    "POST",
                    f"/activities/{chance.choice(known[-30:])}/cancel/",
                    body={"reason": "chaos"},
                    key=key,
                )
                self.cancelled["activities"] += status == 200
            elif drawn < 0.50 and self._flows[tenant]:
                flow = chance.choice(self._flows[tenant][-5:])
                status, _ = caller.send(
                    "POST", f"/pipeline-runs/{flow}/cancel/", body={"reason": "chaos"}, key=key
                )
                self.cancelled["pipeline runs"] += status == 200
            elif drawn < 0.65 and known:
                caller.send(
                    "PATCH",
                    f"/activities/{chance.choice(known[-30:])}/",
                    body={"priority": chance.randint(1, 20)},
                )
            elif drawn < 0.75:
                role = chance.choice(ROLES)
                if caller.send("POST", f"/queues/{role}/pause/", body={}, key=key)[0] in (0, 200):
                    self._quiet.wait(chance.uniform(0.5, 3))
                    self._post_until_answered(caller, f"/queues/{role}/resume/", f"{key}-on")
            elif drawn < 0.85:
                page = caller.get("/activities/?status=needs_review,failed&limit=5") or {"results": []}
                for activity in page["results"]:
                    caller.send(
                        "POST", f"/activities/{activity['id']}/retry/", body={}, key=f"{key}-{activity['id']}"
                    )
        for role in ROLES:
            self._post_until_answered(caller, f"/queues/{role}/resume/", f"last-{tenant}-{role}")

    def _post_until_answered(self, caller: Caller, path: str, key: str) -> None:
        deadline = time.monotonic() + 90
        while time.monotonic() < deadline and not self._ended.is_set():
            if 0 < caller.send("POST", path, body={}, key=key)[0] < 500:
                return
            time.sleep(0.5)

    # People.

    def _decides(self, tenant: str) -> None:
        """Answer questions as two reviewers, who every third time give contrary answers at the same moment."""
        pair = [self.caller(tenant, "admin", "first"), self.caller(tenant, "reviewer", "second")]
        chance = random.Random(f"{self.seed}:{tenant}:decides")
        while not self._ended.wait(chance.uniform(0.6, 1.4)):
            page = pair[0].get("/inbox/?limit=50")
            for item in (page or {"results": []})["results"]:
                if self._ended.is_set():
                    return
                offered = [
                    verb
                    for verb in item["allowed_actions"]
                    if verb in ("approve", "reject", "resolve", "complete")
                ]
                if not offered or (not self._quiet.is_set() and chance.random() < 0.2):
                    continue
                yes = chance.random() < 0.8
                verb = ("approve" if yes else "reject") if "approve" in offered else offered[0]
                if {"approve", "reject"} <= set(offered) and chance.random() < 0.35:
                    verbs = ["approve", "reject"] if chance.random() < 0.5 else ["reject", "approve"]
                    _together(
                        *(
                            lambda by=by, what=what, item=item: self._decide(by, item, what, contested=True)
                            for by, what in zip(pair, verbs, strict=True)
                        )
                    )
                else:
                    self._decide(chance.choice(pair), item, verb, contested=False)

    def _decide(self, caller: Caller, item: dict[str, Any], verb: str, *, contested: bool) -> None:
        body = (
            {"output": {"content": "as you like"}}
            if verb == "complete"
            else {"notes": f"{verb} by {caller.name}"}
        )
        if verb == "resolve":
            body = {"note": "It is back."}
        status, answer = caller.send("POST", f"/activities/{item['id']}/{verb}/", body=body)
        code = answer.get("code", "") if isinstance(answer, dict) else ""
        self.decisions.append(
            Decision(
                caller.tenant,
                item["id"],
                item["kind"],
                verb,
                caller.name,
                time.time(),
                status,
                code,
                contested,
            )
        )

    def _follows(self, tenant: str) -> None:
        """Follow one stream of events, continued with Last-Event-ID after each interruption."""
        streamed = Streamed(tenant)
        self.streams.append(streamed)
        last = "0"
        headers = {"Authorization": f"Bearer {self._tokens[tenant]['viewer']}", "Accept": "text/event-stream"}
        client = httpx2.Client(timeout=httpx2.Timeout(25, connect=4), trust_env=False)
        while not self._ended.wait(0.5):
            try:
                with client.stream(
                    "GET", f"{self.base}/api/v1/events/", headers={**headers, "Last-Event-ID": last}
                ) as answer:
                    if answer.status_code != 200:
                        continue
                    streamed.connections += 1
                    number, kind, data = "", "", False
                    for line in answer.iter_lines():
                        if self._ended.is_set():
                            return
                        if line.startswith("id: "):
                            number = line[4:]
                        elif line.startswith("event: "):
                            kind = line[7:]
                        elif line.startswith("data: "):
                            data = True
                        elif not line:
                            if kind == "reset":
                                streamed.resets += 1
                            elif data and number:
                                streamed.ids.append(int(number))
                            last = number or last
                            kind, data = "", False
            except (httpx2.HTTPError, httpx2.StreamError):
                continue

    def _sends_canaries(self) -> None:
        """Send small activities one after the other. The time that each takes shows when work flows."""
        caller = self.caller(CANARY, "operator")
        number = 0
        while not self._ended.wait(0.5):
            number += 1
            body = {
                "name": f"canary {number}",
                "agent_role": CANARY_ROLE,
                "priority": 1,
                "params": {"chaos": {"mark": f"canary-{number}"}},
            }
            sent = time.time()
            status, answer = caller.send("POST", "/activities/", body=body, key=f"canary-{number}")
            if status != 201:
                continue
            canary = Canary(answer["id"], sent, time.time())
            self.canaries.append(canary)
            threading.Thread(target=self._watch, args=(canary,), daemon=True).start()

    def _watch(self, canary: Canary) -> None:
        """Record when the API says that the canary is done."""
        caller = Caller(self.base, CANARY, "watcher", self._tokens[CANARY]["viewer"], self.counted)
        try:
            while not self._ended.is_set() and time.time() - canary.sent < 120:
                time.sleep(0.4)
                activity = caller.get(f"/activities/{canary.id}/")
                if activity and activity["status"] == "done":
                    canary.done = time.time()
                    return
        finally:
            caller.http.close()

    # Common parts.

    def _request(
        self, caller: Caller, what: str, name: str, key: str | None, body: dict[str, Any]
    ) -> Request:
        request = Request(caller.tenant, what, name, key, time.time(), body=body)
        self.requests.append(request)
        return request

    def _post(self, caller: Caller, request: Request, path: str, patience: float) -> None:
        """Repeat the request until there is a definite answer or the patience is over; once if it has no key."""
        deadline = time.monotonic() + patience
        while True:
            status, answer = caller.send("POST", path, body=request.body, key=request.key)
            request.statuses.append(status)
            if 200 <= status < 300:
                request.ids.append(answer["id"])
                request.acknowledged = time.time()
                return
            conflict = status == 409 and "idempotency" in str(answer.get("code", ""))
            if request.key is None or (400 <= status < 500 and status != 429 and not conflict):
                return
            if time.monotonic() > deadline or self._ended.wait(0.4):
                return

    def _thread(self, among: list[threading.Thread], action: Callable[..., None], *arguments: Any) -> None:
        def act() -> None:
            try:
                action(*arguments)
            except Exception as error:  # noqa: BLE001  # reported as an error of the harness
                self.failures.append(f"{action.__name__}{arguments}: {type(error).__name__}: {error}")

        thread = threading.Thread(target=act, name=action.__name__, daemon=True)
        among.append(thread)
        thread.start()


def _together(*actions: Callable[[], None]) -> None:
    barrier = threading.Barrier(len(actions))

    def act(action: Callable[[], None]) -> None:
        barrier.wait()
        action()

    threads = [threading.Thread(target=act, args=(action,), daemon=True) for action in actions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
