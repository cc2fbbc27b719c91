"""Start the sample agents: `python -m examples.agents.text_agents --port 9100`.

Prints its address, and writes it to `--ready-file` when it listens, so that `--port 0` (any free port) can be
used by programs. Ends immediately, without a message, on Ctrl-C or SIGTERM.
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
from pathlib import Path

from .server import AgentServer


def main() -> None:
    """Serve until a signal."""
    options = _options()
    logging.basicConfig(level=logging.INFO if options.verbose else logging.WARNING, format="%(message)s")
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: sys.exit(0))
    with AgentServer(options.host, options.port, secrets=options.secret) as server:
        _announce(server.url, options.ready_file)
        server.serve_forever()


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="text_agents", description="Sample agents that need no model.")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=9100, help="0 chooses a free port")
    parser.add_argument(
        "--ready-file", type=Path, help="the address is written to this file once the server listens"
    )
    parser.add_argument("--secret", action="append", default=[], help="whsec_...; repeat it to rotate")
    parser.add_argument("--verbose", action="store_true", help="one line per request")
    return parser.parse_args()


def _announce(url: str, ready_file: Path | None) -> None:
    sys.stdout.write(f"Text agents listen at {url}\n")
    sys.stdout.flush()
    if ready_file is not None:
        # A rename is atomic, so a reader never sees half an address.
        unfinished = ready_file.with_name(f"{ready_file.name}.{os.getpid()}")
        unfinished.write_text(url)
        unfinished.replace(ready_file)


if __name__ == "__main__":
    main()
