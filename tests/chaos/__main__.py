"""`python -m tests.chaos`: inject faults into an installation for some minutes and report whether every check held.

Exits 0 if every check held, 1 if one did not, 2 if the harness itself failed, 130 on Ctrl-C.
"""

from __future__ import annotations

import argparse
import json
import logging
import random
import secrets
import shutil
import signal
import sys
import threading
import time
import traceback
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from tests.chaos import checks, plan, report
from tests.chaos import evidence as evidences
from tests.chaos.agent import Agent
from tests.chaos.evidence import Evidence, Recovery
from tests.chaos.faults import KINDS, Fault, Place, available, described
from tests.chaos.installation import (
    ROOT,
    TIMES,
    WEBS,
    WORKERS,
    HarnessTrouble,
    Installation,
    check_invariants,
    running,
)
from tests.chaos.workload import (
    CANARY,
    CANARY_ROLE,
    CAPS,
    PIPELINES,
    ROLE_CAPS,
    ROLES,
    SCHEDULE_SECONDS,
    TENANT_CAPS,
    TENANTS,
    TIMEOUT_SECONDS,
    Caller,
    Workload,
)  # fmt: skip

DRAIN_SHARE, LEAST_DRAIN = 0.3, 30.0  # the share of the minutes after the last fault, and its least seconds
REST_SECONDS = 240.0  # the limit for everything to come to rest; long, because a busy machine is slow
STANDSTILL_SECONDS = 60.0  # without another activity that ends
RECOVERY_SECONDS = 45.0  # after a wave; then the next one begins anyway
TOKEN_ROLES = ("admin", "operator", "reviewer", "viewer")

EPILOG = f"""kinds of faults:
{described()}

Two runs with the same seed submit the same work and inject the same faults in the same order. How threads, processes and servers
interleave differs from run to run, and the duration of the waves decides how many there are. So a violation may need several runs to recur.
"""


class Stopped(Exception):
    """Ctrl-C or SIGTERM."""


class Log:
    """Prints lines with the time since the first fault, and writes them and other facts to the journal."""

    def __init__(self, journal: Path) -> None:
        self.began = time.monotonic()
        self._lock = threading.Lock()
        self._journal = journal.open("a")

    def __call__(self, line: str, mark: str = " ") -> None:
        with self._lock:
            print(f"{time.monotonic() - self.began:7.1f} s {mark} {line}", flush=True)
            self.note(line=line)

    def note(self, **facts: Any) -> None:
        self._journal.write(json.dumps({"at": time.time(), **facts}, default=str) + "\n")
        self._journal.flush()


def main() -> int:
    options = _options()
    signal.signal(signal.SIGTERM, _stop)
    signal.signal(signal.SIGINT, _stop)
    logging.getLogger("orchestrator").setLevel(logging.ERROR)
    for noisy in ("httpx", "httpx2", "httpcore2"):
        logging.getLogger(noisy).setLevel(logging.ERROR)
    folder = Path(
        options.home or ROOT / "var" / "chaos" / f"{datetime.now(UTC):%m%d-%H%M%S}-{options.seed}"
    ).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    report_path = Path(options.report) if options.report else folder.parent / "report.json"
    repeat = f"make chaos MINUTES={options.minutes:g} SEED={options.seed}" + (
        f" KINDS={','.join(options.kinds)}" if options.chosen else ""
    )
    outcome = report.Outcome(
        options.seed, repeat, options.minutes, options.kinds, options.times, logs=str(folder / "log")
    )
    tell = Log(folder / "journal.jsonl")
    print(
        f"seed {options.seed}, {options.minutes:g} minutes, {len(options.kinds)} kinds of faults, up to {options.at_once} at once",
        flush=True,
    )
    code = None
    try:
        _inject_faults(options, folder, outcome, tell)
    except (Stopped, KeyboardInterrupt):
        outcome.troubles.append("stopped before the end")
        code = 130
    except Exception as error:  # noqa: BLE001  # an error of the harness tells nothing about the installation
        tell.note(trouble=traceback.format_exc())
        outcome.troubles.append(f"{type(error).__name__}: {error}")
        traceback.print_exc()
    report.write(outcome, report_path)
    _clear(folder)
    print(report.text(outcome))
    print(f"report: {report_path}\nagain:  {repeat}", flush=True)
    return outcome.exit_code if code is None else code


def _inject_faults(options: argparse.Namespace, folder: Path, outcome: report.Outcome, tell: Log) -> None:
    agent = Agent(options.seed, hang_seconds=TIMEOUT_SECONDS + 2)
    agent.start()
    began = time.monotonic()
    try:
        with running(folder, times=options.times, tell=tell) as installation:
            tokens, ids = _tenants(installation)
            installation.start_all()
            workload = Workload(
                installation.web, tokens, seed=options.seed, load=options.load, pipelines=True
            )
            _configure(installation, workload, agent)
            workload.begin()
            try:
                _run(options, installation, workload, agent, outcome, tell, began, ids)
            finally:
                agent.stopped.set()
                workload.end()
    finally:
        agent.stop()
        outcome.seconds["all"] = round(time.monotonic() - began, 1)


def _run(
    options: argparse.Namespace, installation: Installation, workload: Workload, agent: Agent, outcome: report.Outcome, tell: Log,
    began: float, ids: dict[str, str],
) -> None:  # fmt: skip
    outcome.seconds["start"] = round(time.monotonic() - began, 1)
    print(f"up after {outcome.seconds['start']:.0f} s", flush=True)
    _await_canary(workload, time.time(), 60) or _trouble("no work was done within 60 s, before any fault")
    tell.began = time.monotonic()
    since = time.time()
    total = options.minutes * 60
    faults_until = tell.began + max(
        total * (1 - DRAIN_SHARE) if total * DRAIN_SHARE > LEAST_DRAIN else total - LEAST_DRAIN, total * 0.4
    )
    ticker = _Ticker(workload, agent, tell)
    ticker.start()
    recoveries: list[Recovery] = []
    place = Place(installation, agent, workload.burst)
    for wave in plan.waves(options.seed, options.kinds, options.at_once):
        if time.monotonic() >= faults_until:
            break
        recoveries.append(_wave(wave, place, workload, outcome, tell))
    outcome.seconds["faults"] = round(time.monotonic() - tell.began, 1)

    tell("no more faults and no new work; people continue to answer")
    resting = time.monotonic()
    workload.quieten()
    _end_schedules(workload)
    least, progress = sys.maxsize, time.monotonic()
    while open_ := evidences.unsettled(workload):
        if len(open_) < least:
            least, progress = len(open_), time.monotonic()
        if time.monotonic() - progress > STANDSTILL_SECONDS or time.monotonic() - resting > REST_SECONDS:
            break
        tell.note(unsettled=open_)
        time.sleep(1.0)
    ticker.stop()
    outcome.seconds["rest"] = round(time.monotonic() - resting, 1)
    tell(
        "everything has ended, or waits for people or a time"
        if not open_
        else f"{len(open_)} activities have not come to rest, such as {open_[0]}"
    )
    workload.end()
    evidence = evidences.collect(workload, agent, tell=tell)
    evidence.recoveries = recoveries
    evidence.caps = {(ids[tenant], role): cap for tenant in TENANTS for role, cap in CAPS.items()}
    evidence.role_caps, evidence.tenant_caps = (
        ROLE_CAPS,
        {ids[tenant]: cap for tenant, cap in TENANT_CAPS.items()},
    )
    tell("manage.py check_invariants --quiesced")
    evidence.invariants = check_invariants(installation, 60, since)
    _keep_evidence(evidence, tell)
    outcome.violations = checks.examine(evidence)
    outcome.figures = report.figures(workload, evidence, installation.restarts)
    outcome.recovery = report.recovery_by_kind(evidence)
    outcome.troubles += [f"a client thread failed: {failure}" for failure in workload.failures]
    if unexpected := workload.unexpected:
        outcome.remarks.append(f"{len(unexpected)} answers that no outage explains, such as {unexpected[0]}")
        tell.note(unexpected=unexpected)


def _wave(
    wave: list[plan.Planned], place: Place, workload: Workload, outcome: report.Outcome, tell: Log
) -> Recovery:
    threads = [
        threading.Thread(target=_do, args=(planned, place, outcome, tell), daemon=True) for planned in wave
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(400)
        if thread.is_alive():
            _trouble(f"a fault of {[planned.kind for planned in wave]} did not end")
    for name in (*WORKERS, *WEBS):  # including those that exited and were restarted
        place.installation.await_ready(name)
    healed = time.time()
    seconds = _await_canary(workload, healed, RECOVERY_SECONDS)
    kinds = [planned.kind for planned in wave]
    tell(
        f"work flows again after {seconds:.1f} s"
        if seconds is not None
        else f"WORK DOES NOT FLOW {RECOVERY_SECONDS:.0f} s after {kinds}"
    )
    return Recovery(kinds, any(KINDS[kind].server for kind in kinds), healed, seconds)


def _do(planned: plan.Planned, place: Place, outcome: report.Outcome, tell: Log) -> None:
    fault: Fault = KINDS[planned.kind](place, planned.target, random.Random(planned.seed))
    time.sleep(planned.after)
    entry: dict[str, Any] = {
        "kind": planned.kind,
        "target": planned.target,
        "seconds": planned.seconds,
        "began": time.time(),
    }
    outcome.faults.append(entry)
    try:
        lasts = f" for {planned.seconds:g} s" if planned.seconds else ""
        tell(f"{planned.kind} {planned.target}{lasts}", "+")
        fault.inject()
        entry["injected"] = time.time()
        time.sleep(planned.seconds)
    except Exception as error:  # noqa: BLE001  # the fault must be healed in any case
        outcome.troubles.append(f"{planned.kind} could not be injected: {type(error).__name__}: {error}")
        tell.note(trouble=traceback.format_exc())
    finally:
        try:
            fault.heal()
        except Exception as error:  # noqa: BLE001
            outcome.troubles.append(f"{planned.kind} could not be healed: {type(error).__name__}: {error}")
            tell.note(trouble=traceback.format_exc())
    entry |= {"healed": time.time(), "detail": fault.detail, "target": fault.target}
    tell(f"{planned.kind} {fault.target} {fault.detail}", "-")


def _await_canary(workload: Workload, since: float, seconds: float) -> float | None:
    """Return how long after `since` the first activity that was sent later was done, or None after the limit."""
    deadline = time.time() + seconds
    while time.time() < deadline:
        done = [canary.done for canary in list(workload.canaries) if canary.sent >= since and canary.done]
        if done:
            return min(done) - since
        time.sleep(0.1)
    return None


class _Ticker(threading.Thread):
    """Prints the progress every five seconds."""

    def __init__(self, workload: Workload, agent: Agent, tell: Log) -> None:
        super().__init__(name="ticker", daemon=True)
        self._workload, self._agent, self._tell, self._over = workload, agent, tell, threading.Event()

    def run(self) -> None:
        while not self._over.wait(5):
            requests = self._workload.requests
            acknowledged = sum(bool(request.ids) for request in list(requests))
            open_ = sum(call.ended is None for call in list(self._agent.calls))
            self._tell(
                f"requested {len(requests)}, acknowledged {acknowledged}, agent calls {len(self._agent.calls)} ({open_} open), "
                f"decided {len(self._workload.decisions)}, canaries {sum(bool(each.done) for each in self._workload.canaries)}",
                ".",
            )

    def stop(self) -> None:
        self._over.set()


def _tenants(installation: Installation) -> tuple[dict[str, dict[str, str]], dict[str, str]]:
    """Create the tenants with a token for each role, all in one process. Return the tokens and the ids by slug."""
    code = f"""
import io, json
from django.core.management import call_command
created = {{}}
for slug in {(*TENANTS, CANARY)!r}:
    out = io.StringIO(); call_command("create_tenant", slug, stdout=out, stderr=io.StringIO())
    created[slug] = {{"id": out.getvalue().split()[-1]}}
    for role in {TOKEN_ROLES!r}:
        out = io.StringIO(); call_command("create_token", tenant=slug, role=role, stdout=out, stderr=io.StringIO())
        created[slug][role] = out.getvalue().split()[-1]
print(json.dumps(created))
"""
    created = json.loads(installation.manage("shell", "-v0", "-c", code).stdout.strip().splitlines()[-1])
    with installation.database() as connection:
        for role, cap in ROLE_CAPS.items():
            connection.execute("UPDATE agents_agent SET max_concurrency = %s WHERE role = %s", [cap, role])
        for slug, cap in TENANT_CAPS.items():
            connection.execute("UPDATE tenants_tenant SET max_concurrency = %s WHERE slug = %s", [cap, slug])
    return created, {slug: entry["id"] for slug, entry in created.items()}


def _configure(installation: Installation, workload: Workload, agent: Agent) -> None:
    for tenant in (*TENANTS, CANARY):
        admin = workload.caller(tenant, "admin")
        for role in ROLES if tenant != CANARY else (CANARY_ROLE,):
            body: dict[str, Any] = {
                "adapter": "http", "endpoint": f"{agent.url}/{role}", "timeout_seconds": TIMEOUT_SECONDS,
                "retry": {"base_seconds": 0.5, "max_seconds": 3, "max_attempts": 12},
            }  # fmt: skip
            if tenant != CANARY:
                body["max_concurrency"] = CAPS[role]
            _must(admin, "PUT", f"/agent-configs/{role}/", body)
        if tenant == CANARY:
            continue
        for key, definition in PIPELINES.items():
            _must(admin, "PUT", f"/pipelines/{key}/", definition)
        schedule = {
            "name": "every few seconds", "repeat": "repeating", "interval_ms": SCHEDULE_SECONDS * 1000, "target_type": "agent",
            "agent_role": "site-auditor", "params": {"chaos": {"mark": f"{tenant}-tick"}}, "overlap": "allow", "enabled": True,
            "catch_up": {"up_to": 100}, "start_at": (datetime.now(UTC) + timedelta(seconds=3)).replace(microsecond=0).isoformat(),
        }  # fmt: skip
        workload.schedules[tenant] = [_must(admin, "POST", "/schedules/", schedule)["id"]]


def _end_schedules(workload: Workload) -> None:
    for tenant, schedules in workload.schedules.items():
        admin = workload.caller(tenant, "admin")
        for schedule in schedules:
            deadline = time.monotonic() + 30
            while (
                admin.send("PATCH", f"/schedules/{schedule}/", body={"enabled": False})[0] != 200
                and time.monotonic() < deadline
            ):
                time.sleep(0.5)


def _must(caller: Caller, method: str, path: str, body: dict[str, Any]) -> Any:
    deadline = time.monotonic() + 30
    while True:
        status, answer = caller.send(method, path, body=body)
        if 200 <= status < 300:
            return answer
        if 400 <= status < 500 or time.monotonic() > deadline:
            _trouble(f"{method} {path} was answered {status}: {answer}")
        time.sleep(0.5)


def _keep_evidence(evidence: Evidence, tell: Log) -> None:
    for request in evidence.requests:
        tell.note(request=request.__dict__)
    for call in evidence.calls:
        tell.note(call={**call.__dict__, "reports": [each.__dict__ for each in call.reports]})
    for decision in evidence.decisions:
        tell.note(decision=decision.__dict__)


def _clear(folder: Path) -> None:
    """Delete everything but the logs and the journal."""
    for entry in folder.iterdir():
        if entry.name in ("log", "journal.jsonl"):
            continue
        shutil.rmtree(entry, ignore_errors=True) if entry.is_dir() else entry.unlink(missing_ok=True)


def _trouble(text: str) -> Any:
    raise HarnessTrouble(text)


def _stop(number: int, frame: Any) -> None:
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, signal.SIG_IGN)  # stopping takes some seconds and must not be interrupted
    print("stopping everything ...", flush=True)
    raise Stopped


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.chaos",
        description=__doc__,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--minutes",
        type=float,
        default=2.0,
        help="for faults and the rest after them; start and evaluation come in addition (2)",
    )
    parser.add_argument("--seed", type=int, default=None, help="of all random choices (default: a new one)")
    parser.add_argument("--kinds", default="", help="only these kinds of faults, separated by commas")
    parser.add_argument("--at-once", type=int, default=3, help="the largest number of overlapping faults (3)")
    parser.add_argument(
        "--load", type=float, default=1.0, help="1: about five submissions a second over all tenants"
    )
    parser.add_argument(
        "--times", choices=sorted(TIMES), default="short", help="short: leases of a third of the defaults"
    )
    parser.add_argument("--report", default="", help="path of the JSON report (var/chaos/report.json)")
    parser.add_argument("--home", default="", help="folder for logs and data (a new one below var/chaos)")
    parser.add_argument("--list", action="store_true", help="list the kinds of faults and exit")
    options = parser.parse_args()
    if options.list:
        print(described())
        sys.exit(0)
    options.chosen = [name for name in options.kinds.replace(" ", ",").split(",") if name]
    if unknown := [name for name in options.chosen if name not in KINDS]:
        parser.error(f"unknown kinds: {', '.join(unknown)}; --list prints all kinds")
    if missing := [name for name in options.chosen if name not in available()]:
        parser.error(f"not possible on this machine: {', '.join(missing)}")
    options.kinds = options.chosen or list(available())
    options.seed = secrets.randbelow(10**6) if options.seed is None else options.seed
    return options


if __name__ == "__main__":
    sys.exit(main())
