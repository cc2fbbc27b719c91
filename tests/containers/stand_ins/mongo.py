"""A server of MongoDB's protocol that requires logins (SCRAM-SHA-256) and gives each access to one database, as the real one does.

Logins come from the environment of docker-compose.yml: MONGO_INITDB_ROOT_USERNAME with MONGO_INITDB_ROOT_PASSWORD may use every database,
MONGO_APP_USERNAME with MONGO_APP_PASSWORD the one called `orchestrator`.
"""

import asyncio
import base64
import hashlib
import hmac
import os
import secrets
import signal

from nx_27017.handler import NeoSQLiteHandler
from nx_27017.server import run_server

ITERATIONS = 15_000
DATABASE = "orchestrator"
FREE = {
    "hello",
    "ismaster",
    "isMaster",
    "ping",
    "saslStart",
    "saslContinue",
    "buildInfo",
    "buildinfo",
    "endSessions",
}
REFUSED = {
    "ok": 0.0,
    "code": 13,
    "codeName": "Unauthorized",
    "errmsg": "command requires authentication, or a right that is missing",
}


class Logins(NeoSQLiteHandler):
    def __init__(self, data_dir: str) -> None:
        super().__init__(data_dir=data_dir)
        self.users = {
            os.environ[name]: (os.environ[name.replace("USERNAME", "PASSWORD")], database)
            for name, database in (("MONGO_INITDB_ROOT_USERNAME", None), ("MONGO_APP_USERNAME", DATABASE))
            if os.environ.get(name)
        }
        self.exchanges: dict[str, dict] = {}
        self.known: dict[str, str | None] = {}  # the database that each connection may use, None for all

    def handle_insert(self, msg):
        return self._guarded(msg, super().handle_insert)

    def handle_command(self, msg):
        return self._guarded(msg, super().handle_command)

    def close_streams_for_connection(self, connection):
        self.exchanges.pop(connection, None)
        self.known.pop(connection, None)
        return super().close_streams_for_connection(connection)

    def _guarded(self, msg, otherwise):
        connection = msg["_conn_id"]
        body = next((data for kind, data in msg["sections"] if kind == "body"), {})
        command = next(iter(body), "")
        if command == "saslStart":
            return msg["request_id"], self._start(connection, body)
        if command == "saslContinue":
            return msg["request_id"], self._continue(connection, body)
        if command not in FREE:
            allowed = connection in self.known and self.known[connection] in {None, body.get("$db")}
            if not allowed:
                return msg["request_id"], REFUSED
        return otherwise(msg)

    def _start(self, connection, body):
        if body.get("mechanism") != "SCRAM-SHA-256":
            return {"ok": 0.0, "code": 334, "errmsg": "SCRAM-SHA-256 alone"}
        first = bytes(body["payload"]).decode()
        bare = first.partition(",,")[2]
        fields = dict(part.split("=", 1) for part in bare.split(","))
        user = fields["n"].replace("=2C", ",").replace("=3D", "=")
        password, _ = self.users.get(user, (secrets.token_hex(), None))
        salt = hashlib.sha256(user.encode()).digest()[:28]
        nonce = fields["r"] + secrets.token_urlsafe(18)
        challenge = f"r={nonce},s={base64.b64encode(salt).decode()},i={ITERATIONS}"
        self.exchanges[connection] = {
            "user": user,
            "password": password,
            "salt": salt,
            "nonce": nonce,
            "texts": f"{bare},{challenge}",
        }
        return {"ok": 1.0, "conversationId": 1, "done": False, "payload": challenge.encode()}

    def _continue(self, connection, body):
        exchange = self.exchanges.get(connection)
        payload = bytes(body["payload"]).decode()
        if exchange is None:
            return {"ok": 0.0, "code": 18, "errmsg": "Authentication failed."}
        if not payload:  # the driver has seen our proof
            return {"ok": 1.0, "conversationId": 1, "done": True, "payload": b""}
        without_proof, _, proof = payload.rpartition(",p=")
        fields = dict(part.split("=", 1) for part in without_proof.split(","))
        salted = hashlib.pbkdf2_hmac("sha256", exchange["password"].encode(), exchange["salt"], ITERATIONS)
        client = hmac.digest(salted, b"Client Key", "sha256")
        texts = f"{exchange['texts']},{without_proof}".encode()
        signature = hmac.digest(hashlib.sha256(client).digest(), texts, "sha256")
        expected = bytes(a ^ b for a, b in zip(client, signature, strict=True))
        received = base64.b64decode(proof)
        if (
            not hmac.compare_digest(received, expected)
            or fields.get("r") != exchange["nonce"]
            or exchange["user"] not in self.users
        ):
            return {
                "ok": 0.0,
                "code": 18,
                "codeName": "AuthenticationFailed",
                "errmsg": "Authentication failed.",
            }
        self.known[connection] = self.users[exchange["user"]][1]
        server = hmac.digest(hmac.digest(salted, b"Server Key", "sha256"), texts, "sha256")
        return {"ok": 1.0, "conversationId": 1, "done": True, "payload": b"v=" + base64.b64encode(server)}


async def serve() -> None:
    os.makedirs("/data/db", exist_ok=True)
    handler = Logins("/data/db")
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    server = asyncio.create_task(run_server("0.0.0.0", 27017, handler))
    await asyncio.wait({server, asyncio.create_task(stopped.wait())}, return_when=asyncio.FIRST_COMPLETED)
    handler.close_all()


asyncio.run(serve())
