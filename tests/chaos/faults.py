"""The kinds of faults: how each is injected and how it is healed.

`claims` are the resources that a fault uses exclusively; two faults with a common claim never overlap. `inject` returns once the fault is
in force, `heal` once it has ended and stopped processes run again; both may take time. A fault draws its details from `chance`.
"""

from __future__ import annotations

import json
import random
import signal
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, ClassVar

import psycopg
import redis

from tests.chaos import links
from tests.chaos.agent import MOODS, Agent
from tests.chaos.installation import BEATS, SERVERS, WEBS, WORKERS, Installation, faketime_library

UPKEEPERS = (*WORKERS, *BEATS)


@dataclass
class Place:
    """The targets of faults."""

    installation: Installation
    agent: Agent
    burst: Callable[[int], None] = lambda number: None


@dataclass
class Fault(ABC):
    """The base of all faults. `seconds` is the range of its duration; `server` marks faults after which a server is back."""

    name: ClassVar[str] = ""
    about: ClassVar[str] = ""
    targets: ClassVar[tuple[str, ...]] = ("",)
    seconds: ClassVar[tuple[float, float]] = (1.0, 3.0)
    server: ClassVar[bool] = False

    place: Place
    target: str
    chance: random.Random
    detail: str = ""
    hold: list[Any] = field(default_factory=list)

    @classmethod
    def claims(cls, target: str) -> frozenset[str]:
        return frozenset({target or cls.name})

    @property
    def at(self) -> Installation:
        return self.place.installation

    @abstractmethod
    def inject(self) -> None:
        """Start the fault."""

    def heal(self) -> None:  # noqa: B027
        """End the fault. Kinds that end at once have nothing to do."""


KINDS: dict[str, type[Fault]] = {}


def kind(cls: type[Fault]) -> type[Fault]:
    KINDS[cls.name] = cls
    return cls


# Processes.


class OfProcess(Fault):
    def heal(self) -> None:
        self.at.start(self.target)
        # Otherwise a later fault could stop the last process of a kind while the others are still starting.
        self.at.await_ready(self.target)


@kind
class WorkerKilled(OfProcess):
    name, about, targets = "worker-killed", "SIGKILL to a worker", WORKERS

    def inject(self) -> None:
        self.at.kill(self.target)


@kind
class WorkerTerminated(OfProcess):
    name, about, targets = "worker-terminated", "SIGTERM to a worker; it may finish its runs", WORKERS

    def inject(self) -> None:
        ended = self.at.terminate(self.target)
        self.detail += "" if ended else "; did not end in 30 s and was killed"


class Frozen(OfProcess):
    def inject(self) -> None:
        self.at.kill(self.target, signal.SIGSTOP)

    def heal(self) -> None:
        self.at.kill(self.target, signal.SIGCONT)
        time.sleep(1.0)  # for a watchdog that ends its process
        super().heal()


@kind
class WorkerFrozen(Frozen):
    name, about, targets, seconds = (
        "worker-frozen",
        "SIGSTOP to a worker, for less than its lease",
        WORKERS,
        (3, 6),
    )


@kind
class WorkerFrozenLong(Frozen):
    name, about, targets, seconds = (
        "worker-frozen-long",
        "SIGSTOP to a worker, until it counts as lost",
        WORKERS,
        (13, 18),
    )


@kind
class WorkersKilled(Fault):
    name, about, seconds = "workers-killed", "SIGKILL to all workers at once", (1, 3)

    @classmethod
    def claims(cls, target: str) -> frozenset[str]:
        return frozenset(WORKERS)

    def inject(self) -> None:
        for name in WORKERS:
            self.at.kill(name)

    def heal(self) -> None:
        for name in WORKERS:
            self.at.start(name)
        for name in WORKERS:
            self.at.await_ready(name)


@kind
class WorkersRolled(Fault):
    name, about, seconds = (
        "workers-rolled",
        "a rolling restart: one worker after the other, by SIGTERM",
        (0, 0),
    )

    @classmethod
    def claims(cls, target: str) -> frozenset[str]:
        return frozenset(WORKERS)

    def inject(self) -> None:
        for name in WORKERS:
            self.at.terminate(name)
            self.at.start(name)
            self.at.await_ready(name)


class OfLeader(Fault):
    """A fault of the process that leads when the fault begins."""

    @classmethod
    def claims(cls, target: str) -> frozenset[str]:
        return frozenset(UPKEEPERS)

    def find_leader(self) -> str:
        deadline = time.monotonic() + 15
        while True:
            with suppress(psycopg.Error):
                if leader := self.at.leader():
                    self.target = self.detail = leader
                    return leader
            if time.monotonic() > deadline:
                # Without a leader the check of recovery fails anyway, so any process will do.
                self.target = "worker-0"
                self.detail = "worker-0, as no leader was found for 15 s"
                return self.target
            time.sleep(0.3)


@kind
class LeaderKilled(OfLeader):
    name, about = "leader-killed", "SIGKILL to the process that does the upkeep"

    def inject(self) -> None:
        self.at.kill(self.find_leader())

    def heal(self) -> None:
        self.at.start(self.target)
        self.at.await_ready(self.target)


@kind
class LeaderFrozen(OfLeader):
    name, about, seconds = "leader-frozen", "SIGSTOP to the process that does the upkeep", (12, 18)

    def inject(self) -> None:
        self.at.kill(self.find_leader(), signal.SIGSTOP)

    def heal(self) -> None:
        self.at.kill(self.target, signal.SIGCONT)
        time.sleep(1.0)
        self.at.start(self.target)
        self.at.await_ready(self.target)


@kind
class LeaderCutOff(OfLeader):
    name, about, seconds = (
        "leader-cut-off",
        "silence between the process that does the upkeep and all servers",
        (12, 18),
    )

    def inject(self) -> None:
        self.at.switchboard.impose(links.SILENT, self.at.links_of(self.find_leader()))

    def heal(self) -> None:
        self.at.switchboard.lift(links.SILENT, self.at.links_of(self.target))
        self.at.start(self.target)


@kind
class BeatKilled(OfProcess):
    name, about, targets = "beat-killed", "SIGKILL to a beat", BEATS

    def inject(self) -> None:
        self.at.kill(self.target)


@kind
class BeatFrozen(Frozen):
    name, about, targets, seconds = "beat-frozen", "SIGSTOP to a beat", BEATS, (5, 12)


@kind
class WebKilled(OfProcess):
    name, about, targets = "web-killed", "SIGKILL to a web process", WEBS

    def inject(self) -> None:
        self.at.kill(self.target)


@kind
class WebTerminated(OfProcess):
    name, about, targets = "web-terminated", "SIGTERM to a web process", WEBS

    def inject(self) -> None:
        self.at.terminate(self.target, 15)


@kind
class WebFrozen(Frozen):
    name, about, targets, seconds = "web-frozen", "SIGSTOP to a web process", WEBS, (3, 8)


@kind
class ClockOff(Fault):
    name, about, targets, seconds = (
        "clock-off",
        "a worker whose clock is an hour ahead (needs libfaketime)",
        WORKERS,
        (8, 12),
    )

    def inject(self) -> None:
        self.at.kill(self.target)
        library = faketime_library() or ""
        ahead = self.chance.choice(["+3600s", "-3600s"])
        self.detail = ahead
        self.at.start(
            self.target,
            env={
                "LD_PRELOAD": library,
                "FAKETIME": ahead,
                "FAKETIME_DONT_FAKE_MONOTONIC": "1",
                "DONT_FAKE_MONOTONIC": "1",
            },
        )

    def heal(self) -> None:
        self.at.kill(self.target)
        self.at.start(self.target)
        self.at.await_ready(self.target)


# Links.


class OfLink(Fault):
    state: ClassVar[str] = ""
    targets = tuple(f"{name}:{server}" for name in (*WORKERS, *WEBS, *BEATS[:1]) for server in SERVERS)

    @classmethod
    def claims(cls, target: str) -> frozenset[str]:
        process, _, server = target.partition(":")
        return frozenset({process, f"link {server}"})

    def names(self) -> list[str]:
        return [self.target]

    def inject(self) -> None:
        self.at.switchboard.impose(self.state, self.names())

    def heal(self) -> None:
        self.at.switchboard.lift(self.state, self.names())


@kind
class LinkCut(OfLink):
    name, about, seconds, state = (
        "link-cut",
        "one process is refused and reset by one server",
        (3, 8),
        links.CUT,
    )


@kind
class LinkSilent(OfLink):
    name, about, seconds, state = (
        "link-silent",
        "nothing passes between one process and one server, without an error",
        (5, 16),
        links.SILENT,
    )


@kind
class LinkSlow(OfLink):
    name, about, seconds, state = (
        "link-slow",
        "each piece between one process and one server comes 0.2 s late",
        (5, 10),
        links.SLOW,
    )


@kind
class LinkLost(OfLink):
    name, about, seconds, state = (
        "link-answers-lost",
        "requests arrive, answers are lost, between one process and one server",
        (4, 10),
        links.LOST,
    )


@kind
class LinkTorn(OfLink):
    name, about, seconds, state = (
        "link-torn",
        "answers of one server to one process break off in the middle",
        (4, 8),
        links.TORN,
    )


@kind
class LinkReset(OfLink):
    name, about, seconds, state = (
        "link-reset",
        "all connections of one process to one server are reset, once",
        (0, 0),
        links.CUT,
    )

    def inject(self) -> None:
        super().inject()
        super().heal()

    def heal(self) -> None:
        """Does nothing, because the fault has ended."""


@kind
class WorkerCutOff(OfLink):
    name, about, seconds, state, targets = (
        "worker-cut-off",
        "nothing passes between a worker and any server",
        (8, 16),
        links.SILENT,
        WORKERS,
    )

    @classmethod
    def claims(cls, target: str) -> frozenset[str]:
        return frozenset({target})

    def names(self) -> list[str]:
        return self.at.links_of(self.target)


@kind
class AllCut(OfLink):
    name, about, seconds, state, targets = (
        "server-cut-off",
        "all processes are refused and reset by one server",
        (3, 8),
        links.CUT,
        SERVERS,
    )
    server = True

    @classmethod
    def claims(cls, target: str) -> frozenset[str]:
        return frozenset({target})

    def names(self) -> list[str]:
        return [f"{name}:{self.target}" for name in (*WEBS, *WORKERS, *BEATS)]


@kind
class AllSilent(AllCut):
    name, about, seconds, state = (
        "server-silent",
        "nothing passes between one server and all processes",
        (5, 15),
        links.SILENT,
    )


# Redis.


class OfRedis(Fault):
    server = True

    @classmethod
    def claims(cls, target: str) -> frozenset[str]:
        return frozenset({"redis"})

    def ask(self, *command: str) -> Any:
        with self.at.redis() as client:
            return client.execute_command(*command)


@kind
class RedisFlushed(OfRedis):
    name, about, seconds = "redis-flushed", "FLUSHALL", (0, 0)

    def inject(self) -> None:
        self.ask("FLUSHALL")


@kind
class RedisEmptied(OfRedis):
    name, about, seconds = "redis-emptied", "Redis is killed and comes back without its data", (1, 4)

    def inject(self) -> None:
        self.at.kill_server("redis")
        self.at.empty_redis_files()

    def heal(self) -> None:
        self.at.start_server("redis")


@kind
class RedisRestarted(OfRedis):
    name, about, seconds = "redis-restarted", "Redis is stopped in order and started again", (0, 3)

    def inject(self) -> None:
        self.at.stop_server("redis")

    def heal(self) -> None:
        self.at.start_server("redis")


@kind
class RedisFrozen(OfRedis):
    name, about, seconds = "redis-frozen", "SIGSTOP to Redis", (4, 14)

    def inject(self) -> None:
        self.at.signal_server("redis", signal.SIGSTOP)

    def heal(self) -> None:
        self.at.signal_server("redis", signal.SIGCONT)


@kind
class RedisFull(OfRedis):
    name, about, seconds = "redis-full", "Redis refuses writes: out of memory", (4, 10)

    def inject(self) -> None:
        self.ask("CONFIG", "SET", "maxmemory", "1")

    def heal(self) -> None:
        self.ask("CONFIG", "SET", "maxmemory", "0")


class OfAdmissionKeys(OfRedis):
    def choose_keys(self, client: redis.Redis, number: int) -> list[str]:
        with_prefix: Any = client.scan_iter(match="orchestrator:admission*", count=1000)
        keys = sorted(key.decode() for key in with_prefix)
        return self.chance.sample(keys, min(number, len(keys)))


@kind
class RedisKeysGone(OfAdmissionKeys):
    name, about, seconds = "redis-keys-gone", "one to three single keys of admission are deleted", (0, 0)

    def inject(self) -> None:
        with self.at.redis() as client:
            keys = self.choose_keys(client, self.chance.randint(1, 3))
            self.detail = " ".join(keys)
            if keys:
                client.delete(*keys)


@kind
class RedisKeysJunk(OfAdmissionKeys):
    name, about, seconds = (
        "redis-keys-junk",
        "one or two single keys of admission become junk of another type",
        (0, 0),
    )

    def inject(self) -> None:
        with self.at.redis() as client:
            keys = self.choose_keys(client, self.chance.randint(1, 2))
            self.detail = " ".join(keys)
            with client.pipeline() as at_once:  # else admission may write a key again in between
                for key in keys:
                    at_once.delete(key)
                    if self.chance.random() < 0.5:
                        at_once.set(key, "junk")
                    else:
                        at_once.rpush(key, "junk", "more")
                at_once.execute()


@kind
class RedisScripts(OfRedis):
    name, about, seconds = "redis-scripts-flushed", "SCRIPT FLUSH", (0, 0)

    def inject(self) -> None:
        self.ask("SCRIPT", "FLUSH")


@kind
class RedisClients(OfRedis):
    name, about, seconds = "redis-clients-killed", "CLIENT KILL for all clients, three times", (0, 0)

    def inject(self) -> None:
        for _ in range(3):
            self.ask("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
            self.ask("CLIENT", "KILL", "TYPE", "pubsub", "SKIPME", "yes")
            time.sleep(0.3)


@kind
class Duplicates(OfRedis):
    name, about, seconds = (
        "messages-doubled",
        "waiting and unacknowledged messages are sent again, three times each",
        (0, 0),
    )
    server = False

    def inject(self) -> None:
        doubled = 0
        with self.at.redis() as client:
            for _ in range(20):
                waiting: Any = client.scan_iter(match="agent__*")
                copies = [(queue, item) for queue in list(waiting) for item in _items(client, queue)]
                unacknowledged: Any = client.hvals("unacked")
                for entry in unacknowledged:
                    with suppress(ValueError, IndexError, TypeError):
                        message, _, queue = json.loads(entry)
                        copies.append((queue, json.dumps(message)))
                for queue, item in copies[:30]:
                    for _ in range(3):
                        client.lpush(queue, item)
                        doubled += 1
                if doubled >= 9:
                    break
                time.sleep(0.1)
        self.detail = f"{doubled} messages"


def _items(client: redis.Redis, queue: bytes) -> list[Any]:
    with suppress(redis.ResponseError):
        messages: Any = client.lrange(queue, 0, 20)
        return list(messages)
    return []


# PostgreSQL.


class OfPostgres(Fault):
    server = True

    @classmethod
    def claims(cls, target: str) -> frozenset[str]:
        return frozenset({"postgres"})


@kind
class PostgresFrozen(OfPostgres):
    name, about, seconds = "postgres-frozen", "SIGSTOP to PostgreSQL and all its processes", (4, 14)

    def inject(self) -> None:
        self.at.signal_server("postgres", signal.SIGSTOP)

    def heal(self) -> None:
        self.at.signal_server("postgres", signal.SIGCONT)


@kind
class PostgresRestarted(OfPostgres):
    name, about, seconds = "postgres-restarted", "PostgreSQL is stopped in order and started again", (0, 4)

    def inject(self) -> None:
        self.at.stop_server("postgres")

    def heal(self) -> None:
        self.at.start_server("postgres")


@kind
class PostgresKilled(OfPostgres):
    name, about, seconds = "postgres-killed", "SIGKILL to PostgreSQL and all its processes", (0, 4)

    def inject(self) -> None:
        self.at.kill_server("postgres")

    def heal(self) -> None:
        self.at.start_server("postgres")


@kind
class BackendsTerminated(OfPostgres):
    name, about, seconds = (
        "postgres-backends-terminated",
        "pg_terminate_backend for every session, three times",
        (0, 0),
    )

    def inject(self) -> None:
        for _ in range(3):
            with self.at.database() as connection:
                connection.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                    " WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
                )
            time.sleep(0.4)


@kind
class ConnectionsExhausted(OfPostgres):
    name, about, seconds = "postgres-connections-exhausted", "all connections of PostgreSQL are taken", (4, 8)

    def inject(self) -> None:
        for _ in range(300):
            try:
                self.hold.append(self.at.database())
            except psycopg.OperationalError:
                break
        self.detail = f"{len(self.hold)} taken"
        # Processes with a connection lose it, and the freed connections are taken as well.
        with suppress(psycopg.Error):
            self.hold[0].execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE backend_type = 'client backend' AND application_name <> 'chaos'"
            )
        for _ in range(100):
            try:
                self.hold.append(self.at.database())
            except psycopg.OperationalError:
                break

    def heal(self) -> None:
        for connection in self.hold:
            with suppress(psycopg.Error):
                connection.close()


@kind
class TableLocked(OfPostgres):
    name, about, seconds = "postgres-table-locked", "ACCESS EXCLUSIVE on one table", (10, 20)
    server = False
    targets = (
        "activities_activity", "activities_activityrun", "activities_wake", "activities_workerprocess", "activities_outputspool",
        "activities_deadline", "agents_agentconfig", "pipelines_pipelinerun", "pipelines_schedule", "tenants_event", "tenants_token",
    )  # fmt: skip

    def inject(self) -> None:
        connection = self.at.database()
        self.hold.append(connection)
        deadline = time.monotonic() + 10
        while True:
            try:
                connection.execute("BEGIN")
                connection.execute("SET LOCAL lock_timeout = '2s'")
                connection.execute(f'LOCK TABLE "{self.target}" IN ACCESS EXCLUSIVE MODE')
                return
            except psycopg.errors.UndefinedTable:
                self.detail += "; there is no such table"
                return
            except psycopg.Error:
                connection.execute("ROLLBACK")
                if time.monotonic() > deadline:
                    self.detail += "; could not be locked"
                    return

    def heal(self) -> None:
        for connection in self.hold:
            with suppress(psycopg.Error):
                connection.close()


@kind
class RowsLocked(OfPostgres):
    name, about, seconds = (
        "postgres-rows-locked",
        "up to fifty open activities are locked",
        (5, 10),
    )
    server = False

    def inject(self) -> None:
        connection = self.at.database()
        self.hold.append(connection)
        with suppress(psycopg.Error):
            connection.execute("BEGIN")
            connection.execute("SET LOCAL lock_timeout = '3s'")
            rows = connection.execute(
                "SELECT id FROM activities_activity WHERE finished_at IS NULL ORDER BY id LIMIT 50 FOR UPDATE SKIP LOCKED"
            ).fetchall()
            self.detail = f"{len(rows)} rows"

    heal = TableLocked.heal


@kind
class ReadOnly(OfPostgres):
    name, about, seconds = "postgres-read-only", "PostgreSQL refuses writes", (3, 8)

    def _set(self, statement: str) -> None:
        with self.at.database() as connection:
            connection.execute("SET default_transaction_read_only = off")
            connection.execute(statement)
            connection.execute("SELECT pg_reload_conf()")

    def inject(self) -> None:
        self._set("ALTER SYSTEM SET default_transaction_read_only = on")

    def heal(self) -> None:
        self._set("ALTER SYSTEM RESET default_transaction_read_only")


# MongoDB.


@kind
class MongoKilled(Fault):
    name, about, seconds, server = "mongo-killed", "SIGKILL to the MongoDB-protocol server", (2, 8), True

    @classmethod
    def claims(cls, target: str) -> frozenset[str]:
        return frozenset({"mongo"})

    def inject(self) -> None:
        self.at.kill_server("mongo")

    def heal(self) -> None:
        self.at.start_server("mongo")


@kind
class MongoFrozen(MongoKilled):
    name, about, seconds = "mongo-frozen", "SIGSTOP to the MongoDB-protocol server", (4, 12)

    def inject(self) -> None:
        self.at.signal_server("mongo", signal.SIGSTOP)

    def heal(self) -> None:
        self.at.signal_server("mongo", signal.SIGCONT)


# Agents and load.


class AgentsMood(Fault):
    mood: ClassVar[str] = ""
    seconds = (4, 8)

    @classmethod
    def claims(cls, target: str) -> frozenset[str]:
        return frozenset({"agents"})

    def inject(self) -> None:
        self.place.agent.mood = self.mood

    def heal(self) -> None:
        self.place.agent.mood = None


_MOOD_WORDS = {
    "fails": ("agents-fail", "every agent answers 503"),
    "hangs": ("agents-hang", "no agent answers"),
    "limited": ("agents-limited", "every agent answers 429 without Retry-After"),
    "wrong_token": ("agents-lie", "every agent tries other tokens before its own"),
    "contradicts": ("agents-contradict", "every agent sends two different results at once"),
    "too_late": ("agents-late", "every agent reports after its deadline"),
}
for _mood in MOODS:
    _name, _about = _MOOD_WORDS[_mood]
    kind(
        type(
            f"Agents_{_mood}",
            (AgentsMood,),
            {"name": _name, "about": _about, "mood": _mood, "__module__": __name__},
        )
    )


@kind
class Burst(Fault):
    name, about, seconds = "burst", "eighty submissions at once", (0, 0)

    def inject(self) -> None:
        self.place.burst(80)


def available() -> dict[str, type[Fault]]:
    """Return all kinds that can be injected on this machine."""
    return {name: each for name, each in KINDS.items() if name != "clock-off" or faketime_library()}


def described() -> str:
    """Return a line of help for each kind."""
    width = max(map(len, KINDS))
    missing = {name: "  (not here: no libfaketime)" for name in KINDS if name not in available()}
    return "\n".join(f"  {name:{width}}  {each.about}{missing.get(name, '')}" for name, each in KINDS.items())
