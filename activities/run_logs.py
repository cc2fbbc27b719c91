"""Run logs: what agents say while they work, line by line, kept with their run in MongoDB.

A log is for people who watch, so it costs the work nothing: no write to PostgreSQL, no wait of an agent inside a worker, and no run
fails for it. What is not written is counted, and the log says so.

A batch of lines is one document. Its `_id` is the run and the number of its first line, and it is only ever inserted behind the last
one, so numbers have no gap, and anyone who has read up to a number misses nothing. The key of a batch is unique within its run, so a
repetition adds nothing. A log that is full takes no more: its last document counts what came afterwards.
"""

from __future__ import annotations

import atexit
import hashlib
import logging
import os
import re
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cache
from typing import TYPE_CHECKING, Any
from uuid import UUID

import orjson
import redis
from django.conf import settings

from activities import keys, outputs
from activities.exceptions import ActivityError, OutputUnavailable
from activities.run_tokens import RunToken
from agents.contracts import LINE_KINDS, LogLine
from tenants import clock
from tenants import redis as connections
from tenants.events import announcements
from tenants.identifiers import uuid7
from tenants.lazy_import import lazy_import

if TYPE_CHECKING:
    import pymongo
    from pymongo import errors as mongodb
    from pymongo.collection import Collection
else:
    pymongo, mongodb = lazy_import("pymongo"), lazy_import("pymongo.errors")

logger = logging.getLogger(__name__)

EVENT = "run_log"
COLLECTION = "run_logs"
TRIES = 20  # to be the next one of several who add to the same log at once
WRITE_SECONDS = 2.0  # the whole of a write: an agent waits for its answer, and a server may be frozen
AWAY_SECONDS = 5.0  # after a failure; meanwhile nobody waits for MongoDB again
MISSED_SECONDS = 86_400  # how long the count of lines that were not written is kept for the next one that is
PATIENCE_SECONDS = 0.5  # with Redis
MOST_RUNS = 10_000  # with lines that wait in one process

AWAY = "{count} were not kept: the store of logs did not answer."
FULL = "{count} were not kept: a run may log {lines} lines and {size} bytes."

#: Colours and other commands to a terminal, and characters that cannot be shown.
_TERMINAL = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")
_UNSHOWN = re.compile("[\x00-\x08\x0b-\x1f\x7f\ud800-\udfff]")


class LogKeyReused(ActivityError):
    """The Idempotency-Key was used before in this run, for other lines."""

    code = "idempotency_key_reused"
    status = 422


@dataclass(frozen=True, slots=True)
class AppendResult:
    """What became of a batch. `last` is the number of the last line of the log, as far as it is known."""

    kept: int
    dropped: int
    last: int | None
    duplicate: bool = False


@dataclass(frozen=True, slots=True)
class NumberedLine:
    """One line as it is read."""

    number: int
    kind: str
    text: str
    at: datetime


@dataclass(frozen=True, slots=True)
class Page:
    """Lines in their order. `cursor` is where to go on, `dropped` how many a full log did not keep; `more`: there are further lines now."""

    lines: Sequence[NumberedLine]
    cursor: int
    dropped: int
    more: bool


# Writing


def record(run: RunToken, lines: Sequence[LogLine], *, key: str = "") -> AppendResult:
    """Add what an agent has reported. `key` tells two batches with equal lines apart. Raises `LogKeyReused`, and nothing for MongoDB: while
    that is away lines are dropped, and the next ones that are kept say how many.
    """
    digest, now = _hash_bytes(orjson.dumps([[line.at, line.kind, line.text] for line in lines])), clock.now()
    batch = _Batch(f"key:{_hash_bytes(key)}" if key else f"lines:{digest}", digest, tuple(lines), now)
    if not _store.is_expected():
        return _report_missed(run, len(lines))
    before = _take_missed(run)
    if before:
        batch = replace(batch, before=(_dropped_note(before, now),))
    try:
        appended = _append(run, batch)
    except mongodb.PyMongoError as error:
        _store.is_away(error)
        _add_missed(run, before)
        return _report_missed(run, len(lines))
    if before and appended.duplicate:
        _add_missed(run, before)
    _announce(run, appended)
    return appended


@dataclass(frozen=True, slots=True)
class _Batch:
    key: str
    digest: str
    lines: tuple[LogLine, ...]
    at: datetime
    before: tuple[LogLine, ...] = ()  # notes of ours in front of them
    size: int = 0  # what it takes of the room for lines that wait


def _append(run: RunToken, batch: _Batch) -> AppendResult:
    """Insert a batch behind the last one. Raises `PyMongoError`, `LogKeyReused`."""
    documents = _documents()
    with pymongo.timeout(WRITE_SECONDS):
        _make_index()
        for _ in range(TRIES):
            last = documents.find_one(_of_run(run.run_id), sort=[("_id", pymongo.DESCENDING)])
            if last is not None and last.get("full"):
                return _count_dropped(run, batch, last)
            document, appended = _document(run, batch, last)
            try:
                documents.insert_one(document)
            except mongodb.DuplicateKeyError:
                if (same := documents.find_one({"run_id": str(run.run_id), "key": batch.key})) is not None:
                    return _report_repetition(batch, same)
                continue
            return appended
    raise mongodb.PyMongoError("too many add to the same log at once")


def _document(
    run: RunToken, batch: _Batch, last: dict[str, Any] | None
) -> tuple[dict[str, Any], AppendResult]:
    """The document of as much of the batch as has room; the last one of its log if not all of it has."""
    number, size = (last["last"], last["bytes"]) if last else (0, 0)
    kept: list[LogLine] = []
    for line in (*batch.before, *batch.lines):
        more = size + len(line.text.encode())
        if (
            number + len(kept) >= settings.ORCHESTRATOR_RUN_LOG_LINES
            or more > settings.ORCHESTRATOR_RUN_LOG_BYTES
        ):
            break
        kept.append(line)
        size = more
    ours = max(0, len(kept) - len(batch.before))
    dropped = len(batch.lines) - ours
    document = {
        "_id": _place(run.run_id, number + 1),
        "tenant_id": str(run.tenant_id), "activity_id": str(run.activity_id), "run_id": str(run.run_id),
        "key": batch.key, "digest": batch.digest, "last": number + len(kept), "bytes": size,
        "kept": ours, "dropped": dropped, "full": dropped > 0, "dropped_key": "",
        "lines": [{"at": line.at or batch.at, "kind": line.kind, "text": line.text} for line in kept],
        "created_at": batch.at,
    }  # fmt: skip
    return document, AppendResult(ours, dropped, number + len(kept) + (dropped > 0))


def _count_dropped(run: RunToken, batch: _Batch, last: dict[str, Any]) -> AppendResult:
    """The log is full: count the lines. A repetition is known as long as nothing else comes in between."""
    documents = _documents()
    if (same := documents.find_one({"run_id": str(run.run_id), "key": batch.key})) is not None:
        return _report_repetition(batch, same)
    unknown = {"_id": last["_id"], "dropped_key": {"$ne": batch.key}}
    counted = documents.update_one(
        unknown, {"$inc": {"dropped": len(batch.lines)}, "$set": {"dropped_key": batch.key}}
    )
    return AppendResult(0, len(batch.lines), last["last"] + 1, duplicate=not counted.matched_count)


def _report_repetition(batch: _Batch, same: dict[str, Any]) -> AppendResult:
    if same["digest"] != batch.digest:
        raise LogKeyReused("This Idempotency-Key was used for other lines of this run.")
    count = same["kept"]
    return AppendResult(count, len(batch.lines) - count, same["last"] + same["full"], duplicate=True)


def _announce(run: RunToken, appended: AppendResult) -> None:
    if not appended.duplicate and appended.last is not None:
        announcements.announce(
            run.tenant_id, EVENT, run.activity_id, {"run": str(run.run_id), "last": appended.last}
        )


def _report_missed(run: RunToken, count: int) -> AppendResult:
    _add_missed(run, count)
    return AppendResult(0, count, None)


def _add_missed(run: RunToken, count: int) -> None:
    if not count:
        return
    name = keys.lines_missed(run.tenant_id, run.run_id)
    try:
        pipeline = _redis().pipeline(transaction=False)
        pipeline.incrby(name, count)
        pipeline.expire(name, MISSED_SECONDS)
        pipeline.execute()
    except redis.RedisError:
        return  # then nobody learns how many there were


def _take_missed(run: RunToken) -> int:
    try:
        return int(_redis().getdel(keys.lines_missed(run.tenant_id, run.run_id)) or 0)
    except redis.RedisError:
        return 0


def _redis() -> redis.Redis:
    return connections.client(timeout_seconds=PATIENCE_SECONDS)


class _Store:
    """Whether MongoDB can be expected to answer: after a failure nobody in this process tries for a while."""

    def __init__(self) -> None:
        self._until: dict[str, float] = {}  # by address

    def is_expected(self) -> bool:
        return time.monotonic() >= self._until.get(settings.MONGODB_URI, 0.0)

    def is_away(self, error: mongodb.PyMongoError) -> None:
        self._until[settings.MONGODB_URI] = time.monotonic() + AWAY_SECONDS
        facts = {"action": "run_log_waits", "reason": type(error).__name__}
        logger.warning("Logs of runs are not written: MongoDB is away", extra=facts)


_store = _Store()


# From inside a worker


@dataclass(slots=True)
class _Waiting:
    """What an agent in this process has said and is not written yet."""

    run: RunToken
    at: datetime  # of the last line
    lines: list[LogLine] = field(default_factory=list)
    missed: int = 0
    sent: _Batch | None = None  # as long as it is not known whether it has arrived


class Writer:
    """Carries the lines of this process to MongoDB, in a thread of its own. While that is away they wait, as many as have room."""

    def __init__(self) -> None:
        self._waiting: dict[UUID, _Waiting] = {}
        self._size = 0
        self._changed = threading.Condition()
        self._writing = threading.Lock()
        self._thread: threading.Thread | None = None

    def add(self, run: RunToken, kind: str, text: str) -> None:
        """Take each line of the text. Does not wait."""
        now = clock.now()
        lines = [LogLine(kind if kind in LINE_KINDS else "note", line, now) for line in _lines(text)]
        with self._changed:
            waiting = self._waiting.get(run.run_id)
            if waiting is None:
                if len(self._waiting) >= MOST_RUNS:
                    return
                waiting = self._waiting[run.run_id] = _Waiting(run, now)
            waiting.at = now
            for line in lines:
                size = _size(line)
                if self._size + size > settings.ORCHESTRATOR_RUN_LOG_BUFFER_BYTES:
                    waiting.missed += 1
                    continue
                self._size += size
                waiting.lines.append(line)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="run-logs", daemon=True)
                self._thread.start()
            self._changed.notify()

    def flush(self) -> bool:
        """Write what waits; False when MongoDB did not take all of it."""
        with self._writing:
            with self._changed:
                runs = list(self._waiting)
            for run_id in runs:
                try:
                    while self._write(run_id):
                        pass
                except mongodb.PyMongoError as error:
                    _store.is_away(error)
                    return False
                except Exception:
                    # What cannot be written must not stand in the way of everything behind it.
                    logger.exception("Lines of a run were dropped", extra={"action": "run_log_dropped"})
                    self._give_up(run_id)
        return True

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._waiting:
                    self._changed.wait()
            time.sleep(settings.ORCHESTRATOR_RUN_LOG_SECONDS)  # what is said meanwhile goes with it
            if not self.flush():
                time.sleep(AWAY_SECONDS)

    def _write(self, run_id: UUID) -> bool:
        """Write one batch of the run; whether there was one. What fails is written again under the same key."""
        with self._changed:
            waiting = self._waiting[run_id]
            if waiting.sent is None:
                most = settings.ORCHESTRATOR_RUN_LOG_CALL_LINES
                lines, waiting.lines = waiting.lines[:most], waiting.lines[most:]
                size = sum(map(_size, lines))
                if waiting.missed and not waiting.lines:
                    lines.append(_dropped_note(waiting.missed, waiting.at))
                    waiting.missed = 0
                if not lines:
                    del self._waiting[run_id]
                    return False
                waiting.sent = _Batch(f"worker:{uuid7()}", "", tuple(lines), waiting.at, size=size)
            batch = waiting.sent
        _announce(waiting.run, _append(waiting.run, batch))
        self._settle(waiting, batch)
        return True

    def _settle(self, waiting: _Waiting, batch: _Batch) -> None:
        with self._changed:
            waiting.sent = None
            self._size -= batch.size

    def _give_up(self, run_id: UUID) -> None:
        waiting = self._waiting[run_id]
        if (batch := waiting.sent) is not None:
            waiting.missed += len(batch.lines)
            self._settle(waiting, batch)


def here() -> Writer:
    """The writer of this process."""
    return _of_process(os.getpid())


@cache
def _of_process(pid: int) -> Writer:
    # By the process: a fork has no thread of its own.
    writer = Writer()
    atexit.register(writer.flush)
    return writer


def _lines(text: str) -> Iterator[str]:
    """The lines of a text as they can be kept; a longer one is cut, and says so."""
    most = settings.ORCHESTRATOR_RUN_LOG_LINE_BYTES
    for line in text.replace("\r\n", "\n").split("\n"):
        shown = plain(line)
        if len(raw := shown.encode()) > most:
            part = raw[: most - 64].decode(errors="ignore")
            shown = f"{part}… ({len(shown) - len(part)} more characters)"
        yield shown


def plain(line: str) -> str:
    """Without colours and other commands to a terminal, and without characters that cannot be shown."""
    return _UNSHOWN.sub("", _TERMINAL.sub("", line))


def _dropped_note(count: int, at: datetime) -> LogLine:
    return LogLine("note", AWAY.format(count=_count_lines(count)), at)


def _size(line: LogLine) -> int:
    return len(line.text) * 4 + 100  # at most, as Python holds it


def _count_lines(count: int) -> str:
    return f"{count} line" if count == 1 else f"{count} lines"


# Reading


def read(tenant_id: UUID, run_id: UUID, *, after: int = 0, limit: int = 500) -> Page:
    """The lines behind a number. Raises `OutputUnavailable` when MongoDB does not answer. Not to be called inside a transaction."""
    try:
        with pymongo.timeout(outputs.READ_SECONDS):
            return _page(tenant_id, run_id, after, limit)
    except mongodb.PyMongoError as error:
        raise OutputUnavailable("The store of logs does not answer; try again in a moment.") from error


def tail(tenant_id: UUID, run_id: UUID, count: int) -> Page:
    """The last lines of a log. As `read`."""
    try:
        with pymongo.timeout(outputs.READ_SECONDS):
            selection = {**_of_run(run_id), "tenant_id": str(tenant_id)}
            last = _documents().find_one(selection, {"last": 1}, sort=[("_id", pymongo.DESCENDING)])
            return _page(tenant_id, run_id, max(0, (last["last"] if last else 0) - count), count + 1)
    except mongodb.PyMongoError as error:
        raise OutputUnavailable("The store of logs does not answer; try again in a moment.") from error


def _page(tenant_id: UUID, run_id: UUID, after: int, limit: int) -> Page:
    documents, selection = _documents(), {**_of_run(run_id), "tenant_id": str(tenant_id)}
    # The batch that holds the next line is the last one that begins at it or before.
    until = {"$gte": f"{run_id}:", "$lte": _place(run_id, after + 1)}
    first = documents.find_one({**selection, "_id": until}, {"_id": 1}, sort=[("_id", pymongo.DESCENDING)])
    if first is not None:
        selection["_id"] = {**selection["_id"], "$gte": first["_id"]}
    found: list[NumberedLine] = []
    dropped = 0
    for document in documents.find(selection).sort("_id", pymongo.ASCENDING):
        found += [line for line in _number_lines(document) if line.number > after]
        dropped = document["dropped"] if document["full"] else 0
        if len(found) > limit:
            break
    lines = found[:limit]
    return Page(lines, lines[-1].number if lines else after, dropped, more=len(found) > limit)


def _number_lines(document: dict[str, Any]) -> Iterator[NumberedLine]:
    first = document["last"] - len(document["lines"]) + 1
    for number, line in enumerate(document["lines"], first):
        yield NumberedLine(number, line["kind"], line["text"], _aware(line["at"]))
    if document["full"]:
        bounds = {
            "lines": f"{settings.ORCHESTRATOR_RUN_LOG_LINES:,}",
            "size": f"{settings.ORCHESTRATOR_RUN_LOG_BYTES:,}",
        }
        text = FULL.format(count=_count_lines(document["dropped"]), **bounds)
        yield NumberedLine(document["last"] + 1, "note", text, _aware(document["created_at"]))


def _aware(at: datetime) -> datetime:
    return at if at.tzinfo else at.replace(tzinfo=UTC)


# Where they are kept


def forget(run_ids: Sequence[str], activity_ids: Sequence[str]) -> None:
    """Delete the logs of these runs, as far as they are of these activities. Raises `PyMongoError`."""
    _documents().delete_many({"run_id": {"$in": list(run_ids)}, "activity_id": {"$in": list(activity_ids)}})


def every_document_of(tenant_id: UUID, *, at_once: int) -> Iterator[dict[str, Any]]:
    """For an export. Raises `PyMongoError`."""
    yield from _documents().find({"tenant_id": str(tenant_id)}, batch_size=at_once)


def _of_run(run_id: UUID) -> dict[str, Any]:
    return {"_id": {"$gte": f"{run_id}:", "$lt": f"{run_id};"}}


def _place(run_id: UUID, number: int) -> str:
    return f"{run_id}:{number:010}"


def _documents() -> Collection[dict[str, Any]]:
    # The last lines of a log are worth no wait for other members of the set.
    return outputs.collection().database[COLLECTION].with_options(write_concern=pymongo.WriteConcern(w=1))


def _make_index() -> None:
    """So that a batch is added once. It stands beside the data, so nobody has to set it up."""
    if settings.MONGODB_URI not in _indexed:
        _documents().create_index(
            [("run_id", pymongo.ASCENDING), ("key", pymongo.ASCENDING)], unique=True, name="batch_once"
        )
        _indexed.add(settings.MONGODB_URI)


_indexed: set[str] = set()


def _hash_bytes(text: str | bytes) -> str:
    return hashlib.sha256(text.encode() if isinstance(text, str) else text).hexdigest()[:32]
