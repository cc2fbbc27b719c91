"""Forged messages in Redis: no agent is called for them, nothing is lost, and the worker continues."""

from __future__ import annotations

import base64
import json
import pickle
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from activities import cancellation, publishing, tasks
from activities.admission import limits
from activities.models import WorkerProcess
from agents.exceptions import RetryableAgentError
from agents.routing import RUN_TASK, queue_of
from tenants.models import Tenant
from tenants.redis import client
from tests.engine import Engine, eventually
from tests.programs import ROOT
from tests.quick_python import Program
from tests.servers import celery_command

QUEUE = queue_of("qa")
TEN_MEGABYTES = 10_000_000


def reasons_logged(caplog: pytest.LogCaptureFixture, action: str) -> list[str]:
    return [
        getattr(record, "reason", "") for record in caplog.records if getattr(record, "action", "") == action
    ]


@pytest.mark.parametrize(
    ("forged", "action"),
    [
        ("tenant", "message_refused"), ("no tenant", "message_refused"), ("role", "message_refused"),
        ("role of nobody", "message_refused"), ("activity", "message_stale"), ("grant", "message_stale"),
    ],
)  # fmt: skip
def test_a_forged_message_calls_no_agent_and_the_genuine_one_still_works(
    engine: Engine,
    acme: Tenant,
    other_tenant: Tenant,
    caplog: pytest.LogCaptureFixture,
    forged: str,
    action: str,
) -> None:
    engine.serve(other_tenant)
    (activity_id,) = engine.submit(acme)
    message = engine.take()
    assert message is not None
    changes = {
        "tenant": {"tenant": str(other_tenant.pk)},
        "no tenant": {"tenant": str(uuid4())},
        "role": {"role": "dev"},  # a role of this worker
        "role of nobody": {"role": "ba"},  # a role that this worker does not have
        "activity": {"activity": str(uuid4())},
        "grant": {"grant": "1-1"},
    }

    tasks.run(**{**message, **changes[forged]})

    assert (engine.agent.calls, engine.status(acme, activity_id)) == ([], "created")
    assert len(reasons_logged(caplog, action)) == 1
    tasks.run(**message)
    assert (len(engine.agent.calls), engine.status(acme, activity_id)) == (1, "done")


def test_a_message_on_the_queue_of_another_role_is_refused_there(
    engine: Engine, acme: Tenant, caplog: pytest.LogCaptureFixture
) -> None:
    (activity_id,) = engine.submit(acme)
    message = engine.take()
    assert message is not None
    engine.lease.serve(["dev"])
    tasks.run(**message)

    assert (engine.agent.calls, engine.status(acme, activity_id)) == ([], "created")
    assert reasons_logged(caplog, "message_refused") == ["role_not_served"]
    engine.lease.serve(["qa"])
    tasks.run(**message)
    assert [call.activity_id for call in engine.agent.calls] == [activity_id]


def test_a_grant_of_one_tenant_cannot_start_the_activity_of_another(
    engine: Engine, acme: Tenant, other_tenant: Tenant
) -> None:
    """Uses a genuine grant of one tenant with the activity or the id of the other."""
    engine.serve(other_tenant)
    (foreign,) = engine.submit(other_tenant)
    theirs = engine.take()
    (own,) = engine.submit(acme)
    mine = engine.take()
    assert mine is not None
    assert theirs is not None

    tasks.run(**{**mine, "activity": str(foreign)})
    tasks.run(**{**mine, "tenant": str(other_tenant.pk)})

    assert engine.agent.calls == []
    tasks.run(**theirs)
    tasks.run(**mine)
    assert (engine.status(other_tenant, foreign), engine.status(acme, own)) == ("done", "done")


MALFORMED = [
    None, 7, 7.5, True, "", [], {}, {"$gt": ""}, "x" * TEN_MEGABYTES, "0" * 36, "x", "\x00", "../../etc", "{0.__class__}", "\ud800",
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *((name, value) for name in ("tenant", "activity") for value in MALFORMED),
        # A short text may be a grant or a role, so admission and the worker's roles are consulted.
        *((name, value) for name in ("grant", "role") for value in MALFORMED[:9]),
    ],
    ids=lambda value: repr(value)[:12],
)
def test_malformed_arguments_are_refused_before_any_work(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, name: str, value: Any
) -> None:
    monkeypatch.setattr("activities.dispatch.work", lambda grant: pytest.fail(f"worked on {grant}"))
    good = {"tenant": str(uuid4()), "activity": str(uuid4()), "grant": "5-1", "role": "qa"}

    tasks.run(**{**good, name: value})

    assert reasons_logged(caplog, "message_refused") == [f"malformed {name}"]
    assert len(caplog.text) < 1_000


def test_an_unknown_grant_calls_no_agent(engine: Engine, acme: Tenant) -> None:
    for grant in ("\x00", "../../etc", "{0.__class__}", "x", "0"):
        tasks.run(tenant=str(acme.pk), activity=str(uuid4()), grant=grant, role="qa")

    assert engine.agent.calls == []


@pytest.mark.parametrize("end", ["done", "cancelled"])
def test_copies_of_a_processed_message_do_nothing(engine: Engine, acme: Tenant, end: str) -> None:
    (activity_id,) = engine.submit(acme)
    message = engine.take()
    assert message is not None
    if end == "cancelled":
        cancellation.cancel(acme.pk, activity_id, actor="test")

    for _ in range(3):
        tasks.run(**message)

    assert len(engine.agent.calls) == (1 if end == "done" else 0)
    assert len(engine.runs(acme, activity_id)) == (1 if end == "done" else 0)
    assert engine.status(acme, activity_id) == end


def test_a_message_of_an_earlier_run_does_not_start_the_next_run(engine: Engine, acme: Tenant) -> None:
    """A grant is valid for one run."""

    def fail(request: object) -> Any:
        raise RetryableAgentError("down")

    engine.agent.behaviour = fail
    (activity_id,) = engine.submit(acme, retry={"max_attempts": 3, "base_seconds": 0})
    old = engine.take()
    assert old is not None
    tasks.run(**old)
    engine.make_due(acme)
    calls = len(engine.agent.calls)

    tasks.run(**old)

    assert len(engine.agent.calls) == calls
    assert engine.deliver()
    assert len(engine.agent.calls) == calls + 1
    assert len(engine.runs(acme, activity_id)) == calls + 1


# A real worker


@contextmanager
def worker(environment: dict[str, str], log: Path) -> Iterator[Program]:
    command = celery_command("worker", "-Q", QUEUE, "-c", "2", "-n", "pushed@test")
    with log.open("wb") as out, Program(
        [*command, "--loglevel", "INFO"], cwd=ROOT, env=environment, stdout=out, stderr=subprocess.STDOUT
    ) as process:  # fmt: skip
        try:
            yield process
        finally:
            process.kill()
            client().delete(QUEUE)


class Exploit:
    """Writes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return (Path.touch, (self.path,))


def _forged_messages(tmp_path: Path, genuine: bytes, foreign: dict[str, str]) -> list[bytes]:
    """What an attacker with write access to Redis may put into a queue."""
    envelope = json.loads(genuine)

    def changed(**changes: Any) -> bytes:
        return json.dumps({**envelope, **changes}).encode()

    def body(raw: bytes) -> str:
        return base64.b64encode(raw).decode()

    headers = envelope["headers"]
    boom = body(pickle.dumps(Exploit(tmp_path / "unpickled")))
    return [
        b"no json at all", b"\xff\xfe\x00", b"[]", b"7", b"null", b"{}", b'"text"', b'{"body": "x"}', b"[" * 5_000 + b"]" * 5_000,
        b"x" * TEN_MEGABYTES,
        changed(properties={}), changed(properties=None), changed(headers=None), changed(headers=[]), changed(headers={}),
        changed(headers={"task": RUN_TASK}), changed(headers={**headers, "id": None}), changed(headers={**headers, "task": ["x"]}),
        changed(body="not base64 !"), changed(body=body(b"not json")), changed(body=body(b"{}")), changed(body=body(b"[1, 2, 3]")),
        changed(body=boom, **{"content-type": "application/x-python-serialize", "content-encoding": "binary"}),
        changed(body=boom, **{"content-type": "application/x-yaml"}),
        changed(body=body(b"!!python/object/apply:os.system ['true']"), **{"content-type": "application/x-yaml"}),
        changed(body=boom, **{"content-type": "application/data"}),
        changed(headers={**headers, "task": "os.system"}), changed(headers={**headers, "task": "celery.backend_cleanup"}),
        changed(headers={**headers, "eta": "not a time"}), changed(headers={**headers, "compression": "zlib"}),
        publishing._envelope(RUN_TASK, foreign, QUEUE),
        publishing._envelope(RUN_TASK, {**foreign, "tenant": "x" * TEN_MEGABYTES}, QUEUE),
        publishing._envelope(RUN_TASK, {"only": "this"}, QUEUE),
    ]  # fmt: skip


def test_a_real_worker_survives_forged_messages_and_runs_granted_work_once(
    engine: Engine, acme: Tenant, other_tenant: Tenant, process_environment: dict[str, str], tmp_path: Path
) -> None:
    engine.serve(acme, "qa", adapter="inline", endpoint="agents.samples:echo")
    log = tmp_path / "worker.log"
    with worker(
        {**process_environment, "LOG_LEVEL": "INFO", "ORCHESTRATOR_HOME": str(tmp_path)}, log
    ) as process:
        eventually(lambda: WorkerProcess.objects.filter(ended_at=None, roles=["qa"]).exists(), 90)
        engine.lease.end()  # so that only the worker's seats are left
        limits.refresh()
        foreign = {"tenant": str(other_tenant.pk), "activity": str(uuid4()), "grant": "7-7", "role": "qa"}
        genuine = publishing._envelope(RUN_TASK, foreign, QUEUE)
        for item in _forged_messages(tmp_path, genuine, foreign):
            client().lpush(QUEUE, item)

        (activity_id,) = engine.submit(acme)
        eventually(lambda: engine.status(acme, activity_id) == "done", 90)
        eventually(lambda: client().llen(QUEUE) == 0, 30)

        assert process.poll() is None
    assert not (tmp_path / "unpickled").exists()
    assert len(engine.runs(acme, activity_id)) == 1
    text = log.read_text(errors="replace")
    assert text.count("message_refused") >= 10
    assert len(text) < 1_000_000, "the log does not repeat the messages"
