"""Runs `nx-27017` in the foreground: `python -P mongo_server.py PORT FOLDER`.

It replaces the wheel's own command, which refuses to start if the pid in its pid file was reused, and does not
close its databases when it is stopped.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import sys

from nx_27017.handler import NeoSQLiteHandler
from nx_27017.server import run_server


async def serve(port: int, folder: str) -> None:
    """Serve on loopback until SIGTERM or SIGINT. Raises `OSError` if the port is taken."""
    handler = NeoSQLiteHandler(data_dir=folder)
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    server = asyncio.create_task(run_server("127.0.0.1", port, handler))
    waiting = asyncio.create_task(stopped.wait())
    await asyncio.wait({server, waiting}, return_when=asyncio.FIRST_COMPLETED)
    if server.done():
        server.result()
    handler.close_all()


def main() -> None:
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    asyncio.run(serve(int(sys.argv[1]), sys.argv[2]))


if __name__ == "__main__":
    try:
        main()
    except OSError as error:
        sys.exit(f"cannot listen on 127.0.0.1:{sys.argv[1]}: {error}")
