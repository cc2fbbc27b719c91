"""A model of admission in plain Python that applies only the rules of ADR 7. The admission scripts must agree with every grant.

For work on files it does not predict the next grant, because that depends on what was examined before. It says what may be granted and
what must not be left waiting.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from typing import Any

BANDS = (1, 2, 3, 4)
#: Patterns of files that work may declare, with the files that they match.
FILES = {
    "src/a.py": {"src/a.py"},
    "src/b.py": {"src/b.py"},
    "src/*.py": {"src/a.py", "src/b.py"},
    "src/**": {"src/a.py", "src/b.py", "src/lib/c.py"},
    "docs/**": {"docs/x.md", "docs/y.py"},
    "**/*.py": {"src/a.py", "src/b.py", "src/lib/c.py", "docs/y.py"},
}


@dataclass
class Waiter:
    id: str
    tenant: str
    role: str
    band: int
    score: int
    group: str
    since: int
    files: str = ""
    express: int = 0

    def meets(self, other: Waiter) -> bool:
        """Return whether both work on a common file."""
        return self.tenant == other.tenant and bool(self.paths() & other.paths())

    def paths(self) -> set[str]:
        return {path for pattern in self.files.split("\n") for path in FILES.get(pattern, ())}

    def comes_before(self, other: Waiter) -> bool:
        return (self.band, self.score) < (other.band, other.score)

    def scopes(self) -> list[str]:
        among, *_, key = self.group.split("|", 4) if self.group else ("", "")
        group = [f"group:{self.tenant}:{'*' if among == 'tenant' else self.role}:{key}"] if key else []
        return [*group, f"pair:{self.tenant}:{self.role}", f"tenant:{self.tenant}", f"role:{self.role}", "global"]  # fmt: skip

    def origin(self) -> list[str]:
        """Return the scopes that a pause of the pipeline of this work closes."""
        pipeline = self.group.split("|")[2] if self.group else ""
        return [f"pipeline:{self.tenant}:{pipeline}"] if pipeline else []


@dataclass
class Slot:
    waiter: Waiter
    charged: float
    pool: str
    start: tuple[str, int] | None  # as the runaway guard counts it, if it does
    started: int = 0


@dataclass
class Turn:
    """The next of `heads`, which are the first of each band. Aged work of lower bands is passed over, or the next one is of it."""

    counter: str
    heads: list[Waiter]
    aged: list[Waiter]
    next: Waiter


@dataclass
class Reference:
    now: int
    ageing_ms: int
    share: int
    caps: dict[str, Any] = field(default_factory=dict)
    weights: dict[str, int] = field(default_factory=dict)
    pools: dict[str, str] = field(default_factory=dict)
    waiting: dict[str, Waiter] = field(default_factory=dict)
    slots: dict[str, Slot] = field(default_factory=dict)
    again: dict[str, Waiter] = field(default_factory=dict)
    times: dict[tuple[str, str, int], float] = field(default_factory=lambda: defaultdict(float))
    floors: dict[tuple[str, int], float] = field(default_factory=lambda: defaultdict(float))
    durations: dict[tuple[str, str], float] = field(default_factory=dict)
    passed: Counter[tuple[str, int]] = field(default_factory=Counter)
    buckets: dict[tuple[str, str], tuple[float, int]] = field(default_factory=dict)  # tokens and their time
    starts: list[tuple[str, int]] = field(default_factory=list)  # scope and time of each grant
    holds: dict[tuple[str, str, bool], int] = field(
        default_factory=dict
    )  # of urgent and other work, until when
    turns: list[str] = field(default_factory=list)  # tenants with work that ignores pauses, in their order

    def domain(self, role: str) -> str:
        return "*" if "global" in self.caps else self.pools.get(role, role)

    def has_room(self, scope: str, past_pauses: bool = False) -> bool:
        kind, _, rest = scope.partition(":")
        cap = self.caps.get(scope)
        if past_pauses and (past := self.caps.get(f"past:{scope}")):
            cap = None if past == "none" else past
        if cap is None and kind == "group":
            tenant, role, _ = rest.split(":", 2)
            cap = self.caps.get(f"groups:{tenant}:{role}", self.caps.get(f"groups:*:{role}", 1))
        if cap is None and kind == "pair":
            cap = self.caps.get(f"pair:*:{rest.split(':')[1]}")
        used = sum(scope in [*slot.waiter.scopes(), f"seat:{slot.pool}"] for slot in self.slots.values())
        return cap is None or used < cap

    def tokens(self, tenant: str, role: str) -> float | None:
        if (rate := self.caps.get(f"rate:{tenant}:{role}")) is None:
            return None
        per_second, capacity = map(float, rate.split("|"))
        if (kept := self.buckets.get((tenant, role))) is None:
            return capacity
        return min(capacity + per_second * 25 / 1000, kept[0] + (self.now - kept[1]) * per_second / 1000)

    def put_tokens(self, tenant: str, role: str, change: int) -> None:
        if (tokens := self.tokens(tenant, role)) is not None:
            self.buckets[tenant, role] = (float(f"{tokens + change:.6f}"), self.now)

    def may_start(self, waiter: Waiter, past_pauses: bool = False) -> bool:
        pool = self.pools.get(waiter.role)
        seats = pool is not None and f"seat:{pool}" in self.caps and self.has_room(f"seat:{pool}")
        tokens = self.tokens(waiter.tenant, waiter.role)
        window = self.window(waiter)
        within = sum(of == window and self.now - at < 60_000 for of, at in self.starts)
        in_time = (tokens is None or tokens + 0.000001 >= 1) and (not window or within < self.caps[window])
        is_held = self.holds.get((waiter.tenant, waiter.role, waiter.band == 1), 0) > self.now
        paused = not past_pauses and not all(map(self.has_room, waiter.origin()))
        room = all(self.has_room(scope, past_pauses) for scope in waiter.scopes())
        return seats and in_time and room and not is_held and not paused

    def window(self, waiter: Waiter) -> str | None:
        """Return the limit of starts that applies to the waiter: that of its tenant, else that of all tenants."""
        for scope in (f"starts:{waiter.tenant}:{waiter.role}", f"starts:{waiter.role}"):
            if scope in self.caps:
                return scope if self.caps[scope] != "none" else None
        return None

    def held_back(self, tenant: str, role: str) -> bool:
        return not (self.has_room(f"pair:{tenant}:{role}") and self.has_room(f"tenant:{tenant}"))

    def raise_time(self, waiter: Waiter) -> None:
        key = (self.domain(waiter.role), waiter.tenant, waiter.band)
        self.times[key] = max(self.times[key], self.floors[f"role:{waiter.role}", waiter.band])

    def raise_floor(self, name: str, band: int, least: float) -> None:
        self.floors[name, band] = max(self.floors[name, band], least)

    def charge(self, tenant: str, role: str, seconds: float) -> None:
        for band in BANDS:
            key = (self.domain(role), tenant, band)
            self.times[key] = float(f"{self.times[key] + seconds / self.weights.get(tenant, 1):.6f}")

    def offer(self, waiter: Waiter) -> None:
        if waiter.id in self.slots:
            if self.slots[waiter.id].started:
                self.again[waiter.id] = waiter  # because its run has ended and its slot will be released soon
            return
        known = self.waiting.get(waiter.id)
        if known and replace(known, express=0, since=0) == replace(waiter, express=0, since=0):
            known.express = known.express or waiter.express
            self.line_up(known)
            return
        self.leave(waiter.id)
        of_band = [other for other in self.waiting.values() if other.band == waiter.band]
        domain = self.domain(waiter.role)
        if all(other.role != waiter.role for other in of_band):
            self.raise_floor(f"role:{waiter.role}", waiter.band, self.floors[f"domain:{domain}", waiter.band])
        if all((other.tenant, self.domain(other.role)) != (waiter.tenant, domain) for other in of_band):
            self.raise_time(waiter)
        self.waiting[waiter.id] = waiter
        self.line_up(waiter)

    def line_up(self, waiter: Waiter) -> None:
        if waiter.express and waiter.tenant not in self.turns:
            self.turns.append(waiter.tenant)

    def leave(self, id: str) -> Waiter | None:
        waiter = self.waiting.pop(id, None)
        with_express = {other.tenant for other in self.waiting.values() if other.express}
        self.turns = [tenant for tenant in self.turns if tenant in with_express]
        return waiter

    def hold(self, tenant: str, role: str, urgent: bool, milliseconds: int) -> None:
        for which in {False, urgent}:
            key = (tenant, role, which)
            self.holds[key] = max(self.holds.get(key, 0), self.now + milliseconds)

    def release(self, id: str) -> None:
        if (slot := self.slots.get(id)) is None:
            return
        if not slot.started:
            self.put_tokens(slot.waiter.tenant, slot.waiter.role, +1)
            if slot.start:
                self.starts.remove(slot.start)
        waiter, was_held_back = slot.waiter, self.held_back(slot.waiter.tenant, slot.waiter.role)
        del self.slots[id]
        actual = (self.now - slot.started) / 1000 if slot.started else 0
        self.charge(waiter.tenant, waiter.role, actual - slot.charged)
        if slot.started:
            pair = (waiter.tenant, waiter.role)
            self.durations[pair] = float(f"{self.durations.get(pair, actual) * 0.8 + actual * 0.2:.4f}")
        if was_held_back:
            self.raise_time(waiter)
        if id in self.again:
            self.offer(self.again.pop(id))

    def withdraw(self, id: str) -> None:
        self.again.pop(id, None)
        if id in self.waiting:
            self.leave(id)
        elif id in self.slots and not self.slots[id].started:
            self.release(id)

    def audit(self) -> None:
        for slot in self.slots.values():
            elapsed = (self.now - slot.started) / 1000 if slot.started else 0
            if elapsed > slot.charged:
                self.charge(slot.waiter.tenant, slot.waiter.role, elapsed - slot.charged)
                slot.charged = elapsed

    def limit(self, limits: dict[str, Any]) -> None:
        if limits == {"caps": self.caps, "weights": self.weights, "pools": self.pools}:
            return
        waiters = list(self.waiting.values())
        roles = {waiter.role for waiter in waiters} | {*self.pools}
        domains = {role: self.domain(role) for role in roles}
        paused = {role for role in roles if self.caps.get(f"role:{role}") == 0}
        held = {w.id for w in waiters if self.held_back(w.tenant, w.role)}
        self.caps, self.weights, self.pools = limits["caps"], limits["weights"], limits["pools"]
        for slot in self.slots.values():
            slot.pool = slot.pool and self.pools.get(slot.waiter.role, slot.pool)
        level = {role for role in paused if self.caps.get(f"role:{role}") != 0}
        for role, before in domains.items():
            for band in BANDS:
                if before != self.domain(role):
                    self.floors.pop((f"role:{role}", band), None)
                if before != self.domain(role) or role in level:
                    self.raise_floor(f"role:{role}", band, self.floors[f"domain:{self.domain(role)}", band])
        for w in waiters:
            moved = domains[w.role] != self.domain(w.role)
            if moved or w.role in level or (w.id in held and not self.held_back(w.tenant, w.role)):
                self.raise_time(w)

    def turn(self, counter: str, heads: list[Waiter]) -> Turn:
        aged = [head for head in heads[1:] if self.now - head.since >= self.ageing_ms]
        due = [head for head in aged if self.passed[counter, head.band] + 1 >= self.share]
        return Turn(counter, heads, aged, min(due, key=lambda head: head.since, default=heads[0]))

    def take(self, turn: Turn) -> None:
        if turn.next is not turn.heads[0]:
            for band in BANDS:
                self.passed[turn.counter, band] = 0
            return
        self.passed[turn.counter, turn.next.band] = 0
        for head in turn.aged:
            self.passed[turn.counter, head.band] += 1

    def first_of_bands(self, domain: str) -> list[Waiter]:
        def order(w: Waiter) -> tuple[Any, ...]:
            return self.times[domain, w.tenant, w.band], w.score, w.tenant, w.role, w.group, w.id

        may = [w for w in self.waiting.values() if self.domain(w.role) == domain and self.may_start(w)]
        return [min(of_band, key=order) for band in BANDS if (of_band := [w for w in may if w.band == band])]

    def grant(self) -> Waiter | None:
        domains = {self.domain(waiter.role) for waiter in self.waiting.values()}
        turns = [self.turn(f"domain:{d}", heads) for d in domains if (heads := self.first_of_bands(d))]
        if not turns:
            return None
        turns.sort(key=lambda turn: (turn.next.band, turn.next.score, turn.next.role))
        first = turns[0].next
        rivals = [t.next for t in turns if t.next.tenant == first.tenant and t.next.band > first.band]
        over_all = self.turn(
            f"tenant:{first.tenant}", [first, *sorted(rivals, key=lambda w: (w.band, w.role))]
        )
        turn = next(turn for turn in turns if turn.next is over_all.next)
        self.take(turn)
        self.take(over_all)
        return self.begin(turn.next)

    def grant_express(self) -> list[Waiter]:
        """Grant work that ignores pauses. Tenants take turns."""
        granted: list[Waiter] = []
        tenants = list(self.turns)
        waiting = [w for w in self.waiting.values() if w.express]
        lines = [
            sorted((w for w in waiting if w.tenant == t), key=lambda w: (w.express, w.id)) for t in tenants
        ]
        for waiter in (w for row in zip_longest(*lines) for w in row if w):
            if self.may_start(waiter, past_pauses=True):
                granted.append(self.take_slot(waiter))
        for tenant in (w.tenant for w in granted if w.tenant in self.turns):
            self.turns.remove(tenant)
            self.turns.append(tenant)
        return granted

    def begin(self, waiter: Waiter) -> Waiter:
        """Grant the work at its turn."""
        domain = self.domain(waiter.role)
        level = self.times[domain, waiter.tenant, waiter.band]
        self.raise_floor(f"role:{waiter.role}", waiter.band, level)
        self.raise_floor(f"domain:{domain}", waiter.band, level)
        if self.tokens(waiter.tenant, waiter.role) is not None:
            self.raise_time(waiter)
        return self.take_slot(waiter)

    def take_slot(self, waiter: Waiter) -> Waiter:
        self.put_tokens(waiter.tenant, waiter.role, -1)
        start = (window, self.now) if (window := self.window(waiter)) else None
        self.starts += [start] if start else []
        expected = self.durations.get((waiter.tenant, waiter.role), 0.1)
        self.charge(waiter.tenant, waiter.role, expected)
        self.slots[waiter.id] = Slot(waiter, float(f"{expected:.3f}"), self.pools[waiter.role], start)
        self.leave(waiter.id)
        return waiter

    # Work on files.

    def meets_running(self, waiter: Waiter) -> bool:
        return any(slot.waiter.meets(waiter) for slot in self.slots.values())

    def wait_for_files(self) -> list[Waiter]:
        """Return the work that must wait for running work on a common file, or for earlier work that waits itself.

        So narrow work does not overtake wide work forever.
        """
        blocked: list[Waiter] = []
        for waiter in sorted(self.waiting.values(), key=lambda w: (w.band, w.score)):
            if self.meets_running(waiter) or any(w.meets(waiter) and w.comes_before(waiter) for w in blocked):
                blocked.append(waiter)
        return blocked

    def in_line_for_files(self) -> list[Waiter]:
        """Return the work that could start if no running work used its files."""
        return [w for w in self.waiting.values() if self.may_start(w) and self.meets_running(w)]
