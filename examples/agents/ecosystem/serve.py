"""The HTTP side of these agents: takes a job, lets a function do it, and answers in the orchestrator's protocol."""

import argparse
import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


def serve(answer):
    """Serve until the process ends. `answer` gets a job and returns `{"output": {"content": ...}, "usage": ..., "session_id": ...}`."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            job = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))))
            try:
                status, body = 200, answer(job)
            except Exception as error:  # noqa: BLE001 - whatever it is, the orchestrator tries again later
                status, body = 500, {"code": "agent_error", "detail": f"{type(error).__name__}: {error}"}
            payload = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(payload)))
            self.end_headers()
            self.wfile.write(payload)

        def log_message(self, *_):
            pass

    parser = argparse.ArgumentParser(description="An agent for the orchestrator.")
    parser.add_argument("--port", type=int, default=9300, help="0 takes a free one")
    parser.add_argument("--ready-file", type=Path, help="gets the address once the server listens")
    options = parser.parse_args()
    server = ThreadingHTTPServer(("127.0.0.1", options.port), Handler)
    address = f"http://127.0.0.1:{server.server_port}"
    if options.ready_file:
        options.ready_file.write_text(address)
    print(address, flush=True)
    server.serve_forever()
