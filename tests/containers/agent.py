"""An HTTP agent for checks in containers: `python agent.py PORT`, with the standard library only.

A POST is a call of the orchestrator: it takes `params.seconds` and returns a result. GET returns all calls so far.
"""

import json
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

CALLS: list[dict[str, object]] = []
LOCK = threading.Lock()


class Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        job = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        params = job.get("params") or {}
        call: dict[str, object] = {
            "activity": job["job_id"], "run": job["execution_id"], "attempt": job["attempt"], "mark": params.get("mark"), "answered": False,
        }  # fmt: skip
        with LOCK:
            CALLS.append(call)
        time.sleep(float(params.get("seconds") or 0))
        self._answer({"output": {"content": f"done: {job['job_id']}", "data": {"mark": params.get("mark")}}})
        call["answered"] = True

    def do_GET(self) -> None:
        with LOCK:
            self._answer({"calls": list(CALLS)})

    def _answer(self, body: dict[str, object]) -> None:
        raw = json.dumps(body).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)

    def log_message(self, format: str, *arguments: object) -> None:
        pass


if __name__ == "__main__":
    ThreadingHTTPServer(("0.0.0.0", int(sys.argv[1])), Handler).serve_forever()
