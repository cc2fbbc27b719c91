"""The MongoDB-protocol server: `nx-27017`, which stores its documents in SQLite files.

It has no passwords, so it listens on loopback only. It has one file per database, in SQLite's write-ahead mode,
so a kill loses nothing that was acknowledged.
"""

from __future__ import annotations

import importlib.util
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from orchestrator.embedded.errors import WheelMissing
from orchestrator.embedded.server import Launch, Server

SCRIPT = Path(__file__).with_name("mongo_server.py")
DATABASE = "orchestrator"


class MongoServer(Server):
    name = "mongo"

    def launch(self, port: int, *, durable: bool) -> Launch:
        if importlib.util.find_spec("nx_27017") is None:
            raise WheelMissing("nx-27017", "nx-27017")
        # -P keeps this folder off the import path, because the script needs only the wheel.
        return Launch((sys.executable, "-P", str(SCRIPT), str(port), str(self.data)))

    def url(self, port: int) -> str:
        return f"mongodb://127.0.0.1:{port}/{DATABASE}"

    def make_ready(self, port: int) -> bool:
        from pymongo import MongoClient
        from pymongo.errors import PyMongoError

        client: MongoClient[dict[str, Any]] = MongoClient(
            self.url(port), serverSelectionTimeoutMS=500, connectTimeoutMS=500, socketTimeoutMS=1000
        )
        with suppress(PyMongoError), client:
            return bool(client.admin.command("ping")["ok"] == 1)
        return False

    def owns(self, process: psutil.Process) -> bool:
        return str(SCRIPT) in process.cmdline()
