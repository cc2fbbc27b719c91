"""An HTTP agent that records every call and misbehaves as planned.

How it handles a call depends on the seed, on the mark of the work (`params.chaos.mark`) and on the number of calls for the same wake,
never on the order of calls of different work. Its honest reports are repeated until they are answered, as the agent protocol allows.
"""

from __future__ import annotations

import json
import random
import socket
import struct
import threading
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx2

CANARY = "canary"

#: How calls are handled, with weights in per cent. Each is a method of `Call`.
MANNERS = {
    "at_once": 34,
    "slow": 8,
    "later": 22,
    "twice": 6,
    "contradicts": 6,
    "before_accepting": 4,
    "wrong_token": 5,
    "too_late": 2,
    "fails": 4,
    "reports_failure": 3,
    "limited": 2,
    "limited_until": 2,
    "hangs": 1,
    "drops": 1,
}
#: While a fault of the agents is in force, all calls but the canary's are handled in one of these manners.
MOODS = ("fails", "hangs", "limited", "wrong_token", "contradicts", "too_late")
GOOD_AFTER = 3  # calls for one wake, so that every activity can end


@dataclass
class Report:
    """One callback and its answer. `status` 0: no answer came."""

    at: float
    name: str
    status: int
    accepted: bool
    stop: bool
    duplicate: bool
    honest: bool = True  # sent with the run's own token
    content: str = ""


@dataclass
class CallRecord:
    """One call as recorded by the agent, in seconds of this machine's clock."""

    activity: str
    run: str
    wake: str  # the call's Idempotency-Key
    tenant: str
    role: str
    attempt: int
    wake_reason: str
    mark: str
    manner: str
    began: float
    group: str = ""
    ended: float | None = None
    status: int = 0  # of the answer to the call itself; 0: none
    content: str = ""  # of the answer or the report
    reports: list[Report] = field(default_factory=list)


class Agent:
    """A server on loopback. `mood` overrides the manner of calls; `stopped` ends all waiting."""

    def __init__(self, seed: int, *, hang_seconds: float) -> None:
        self.seed, self.hang_seconds = seed, hang_seconds
        self.calls: list[CallRecord] = []
        self.mood: str | None = None
        self.stopped = threading.Event()
        self._turns: Counter[str] = Counter()
        self._wakes: Counter[str] = Counter()
        self._serials: dict[str, int] = {}
        self._counting = threading.Lock()
        self.client = httpx2.Client(timeout=10, trust_env=False, limits=httpx2.Limits(max_connections=64))
        self._server = _Server(("127.0.0.1", 0), _Handler)
        self._server.agent = self
        self._thread = threading.Thread(target=self._server.serve_forever, name="agent", daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self.stopped.set()
        self._server.shutdown()
        self._server.server_close()

    def turn_of(self, wake: str, mark: str) -> tuple[int, int]:
        """Return the number of the call for this wake, and of the wake for this mark: all work of a schedule has the same mark."""
        with self._counting:
            if wake not in self._serials:
                self._wakes[mark] += 1
                self._serials[wake] = self._wakes[mark]
            self._turns[wake] += 1
            return self._turns[wake], self._serials[wake]

    def manner_of(self, body: dict[str, Any], mark: str, turn: int) -> tuple[str, random.Random]:
        chance = random.Random(f"{self.seed}:{mark}:{body.get('pipeline_step')}:{turn}:{body['wake_reason']}")
        if mark.startswith(CANARY):
            return "at_once", chance
        if self.mood and turn <= GOOD_AFTER + 3:
            return self.mood, chance
        manner = chance.choices(list(MANNERS), weights=list(MANNERS.values()))[0]
        if turn > GOOD_AFTER and manner not in ("slow", "later", "twice"):
            manner = "at_once"
        return manner, chance


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128
    agent: Agent

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore errors of connections, which end when a worker is killed."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_OPTIONS(self) -> None:
        self.send_response(204)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        options = (body.get("params") or {}).get("chaos") or {}
        mark = str(options.get("mark", ""))
        agent = self.server.agent
        wake = self.headers["Idempotency-Key"] or ""
        turn, serial = agent.turn_of(wake, mark)
        manner, chance = agent.manner_of(body, f"{mark}:{serial}", turn)
        record = CallRecord(
            activity=body["job_id"],
            run=body["execution_id"],
            wake=wake,
            tenant=body["tenant_id"],
            role=body["agent"],
            attempt=body["attempt"],
            wake_reason=body["wake_reason"],
            mark=mark,
            manner=manner,
            group=str(options.get("group", "")),
            began=time.time(),
        )
        agent.calls.append(record)
        call = Call(agent, self, body, options, record, chance)
        try:
            if options.get("ask") and body["wake_reason"] in ("new_task", "scheduled"):
                call.asks(options["ask"])
            else:
                getattr(call, manner)()
        except OSError:
            self.close_connection = True  # because the caller has disconnected
        finally:
            if not call.reports_later:
                record.ended = time.time()


class Call:
    """One call. Each manner of handling it is a method."""

    def __init__(
        self,
        agent: Agent,
        handler: _Handler,
        body: dict[str, Any],
        options: dict[str, Any],
        record: CallRecord,
        chance: random.Random,
    ) -> None:
        self.agent, self.handler, self.body = agent, handler, body
        self.options, self.record, self.chance = options, record, chance
        self.reports_later = False  # in a thread

    # The manners.

    def at_once(self) -> None:
        self._work(0.03, 0.3)
        self._answer(200, self._result())

    def slow(self) -> None:
        self._work(1.5, 3.5)
        self._answer(200, self._result())

    def later(self) -> None:
        self._answer(202, {"session_id": f"s-{self.record.run[-6:]}"})
        self._afterwards(self._reports_later)

    def twice(self) -> None:
        """Report the same result over two connections at once."""
        self._answer(202, {})
        self._afterwards(self._reports_twice)

    def contradicts(self) -> None:
        """Report two different results at once, of which one may count."""
        self._answer(202, {})
        self._afterwards(self._reports_two_results)

    def before_accepting(self) -> None:
        self._work(0.03, 0.2)
        self._report("complete", self._result())
        self._answer(202, {})

    def wrong_token(self) -> None:
        """Report with tokens of other runs before reporting with the own one."""
        self._answer(202, {})
        self._afterwards(self._reports_with_wrong_tokens)

    def too_late(self) -> None:
        """Accept, and report after the deadline."""
        self._answer(202, {})
        self._afterwards(self._reports_too_late)

    def fails(self) -> None:
        self._work(0.0, 0.1)
        self._answer(503, {"error": "out of order"})

    def reports_failure(self) -> None:
        self._answer(202, {})
        self._afterwards(
            lambda: self._report(
                "fail", {"error": {"message": "could not", "code": "flaky", "retryable": True}}
            )
        )

    def limited(self) -> None:
        self._answer(429, {"error": "too much"})

    def limited_until(self) -> None:
        self._answer(429, {"error": "too much"}, {"Retry-After": "1"})

    def hangs(self) -> None:
        """Do not answer within the timeout of the run."""
        self.agent.stopped.wait(self.agent.hang_seconds)
        self.handler.close_connection = True

    def drops(self) -> None:
        """Reset the connection in the middle of the answer."""
        raw = self.handler.connection
        with suppress(OSError):
            raw.sendall(
                b'HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 5000\r\n\r\n{"outp'
            )
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.handler.close_connection = True

    def asks(self, tool: str) -> None:
        """Call the tool that the work names. Only the first run of the work does."""
        self._answer(202, {})
        self._afterwards(lambda: self._uses(tool))

    # The parts of manners.

    def _work(self, least: float, most: float) -> None:
        self.agent.stopped.wait(self.chance.uniform(least, most))

    def _result(self, variant: str = "") -> dict[str, Any]:
        content = f"{self.record.run} {self.record.wake}{variant}"
        if not variant:
            self.record.content = content
        items = [{"n": number} for number in range(1, 4)]
        return {
            "output": {"content": content, "data": {"run": self.record.run, "items": items}},
            "usage": {"input_tokens": 10, "output_tokens": 5},
        }

    def _answer(self, status: int, body: dict[str, Any], headers: dict[str, str] | None = None) -> None:
        data = json.dumps(body).encode()
        self.handler.send_response(status)
        self.handler.send_header("Content-Type", "application/json")
        self.handler.send_header("Content-Length", str(len(data)))
        for name, value in (headers or {}).items():
            self.handler.send_header(name, value)
        self.handler.end_headers()
        self.handler.wfile.write(data)
        self.handler.wfile.flush()
        self.record.status = status

    def _afterwards(self, action: Any) -> None:
        self.reports_later = True

        def act() -> None:
            try:
                action()
            finally:
                self.record.ended = time.time()

        threading.Thread(target=act, name="agent-later", daemon=True).start()

    def _reports_later(self) -> None:
        self._work(0.1, 1.0)
        if self.chance.random() < 0.5 and self._report("heartbeat", {"progress": "half"}).stop:
            return
        self._work(0.1, 1.0)
        self._report("complete", self._result())

    def _reports_twice(self) -> None:
        self._work(0.1, 0.5)
        result = self._result()
        _together(lambda: self._report("complete", result), lambda: self._report("complete", result))

    def _reports_two_results(self) -> None:
        self._work(0.1, 0.5)
        _together(
            lambda: self._report("complete", self._result()),
            lambda: self._report("complete", self._result(" otherwise")),
        )

    def _reports_with_wrong_tokens(self) -> None:
        self._work(0.05, 0.3)
        own = self.body["callback"]["token"]
        others = [each for each in self.agent.calls[-20:] if each.run != self.record.run]
        false = [own[:-4] + ("AAAA" if own[-4:] != "AAAA" else "BBBB"), "nonsense"]
        if others:
            false.append(_TOKENS.get(self.chance.choice(others).run, "nothing"))
        for token in false:
            self._report("complete", self._result(" stolen"), token=token, patient=False)
        self._report("complete", self._result())

    def _reports_too_late(self) -> None:
        self.agent.stopped.wait(self.agent.hang_seconds)
        self._report("complete", self._result())

    def _uses(self, tool: str) -> None:
        self._work(0.05, 0.4)
        mark, number = f"{self.record.mark}/part", self.record.run[-8:]
        bodies: dict[str, dict[str, Any]] = {
            "create_subtask": {
                "name": f"part {number}",
                "agent_role": self.record.role,
                "params": {"chaos": {"mark": mark}},
                "blocking": True,
            },
            "request_human_review": {"question": f"Is {number} right?"},
            "report_blocker": {"type": "api_outage", "message": f"{number} is away."},
            "create_approval": {"type": "content_direction", "title": f"Which way, {number}?"},
        }
        if not self._report(f"tools/{tool}", bodies[tool]).stop:
            self._report("complete", self._result())

    def _report(
        self, name: str, body: dict[str, Any], *, token: str | None = None, patient: bool = True
    ) -> Report:
        """Send a report, and repeat it for half a minute while there is no answer or a 5xx."""
        callback = self.body["callback"]
        _TOKENS[self.record.run] = callback["token"]
        deadline = time.monotonic() + 30
        while True:
            report = Report(
                time.time(), name, 0, accepted=False, stop=False, duplicate=False, honest=token is None
            )
            report.content = (body.get("output") or {}).get("content", "")
            try:
                answer = self.agent.client.post(
                    f"{callback['url']}{name}/",
                    json=body,
                    headers={"Authorization": f"Bearer {token or callback['token']}"},
                )
                report.status = answer.status_code
                with suppress(ValueError, AttributeError):
                    members = answer.json()
                    report.accepted = bool(members.get("accepted")) or (
                        name.startswith("tools/") and answer.status_code < 300
                    )
                    report.stop, report.duplicate = bool(members.get("stop")), bool(members.get("duplicate"))
            except httpx2.HTTPError:
                pass
            self.record.reports.append(report)
            settled = 0 < report.status < 500 and report.status != 429
            if (
                settled
                or not patient
                or time.monotonic() > deadline
                or self.agent.stopped.wait(self.chance.uniform(0.2, 0.6))
            ):
                return report


#: The last token of each run, for agents that try the token of another run.
_TOKENS: dict[str, str] = {}


def _together(*actions: Any) -> None:
    threads = [threading.Thread(target=action, daemon=True) for action in actions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
