"""TCP ports on loopback: chosen once, kept as long as nobody else takes them."""

from __future__ import annotations

import random
import socket

from orchestrator.embedded.errors import EmbeddedError

# Below the range from which the kernel gives ports to outgoing connections, so that a port is still ours
# after a restart.
FIRST, LAST = 20_000, 32_000
TRIES = 200


class NoFreePort(EmbeddedError):
    """No port could be bound on loopback."""

    code = "no_free_port"

    def __init__(self) -> None:
        super().__init__(
            f"No free TCP port was found on 127.0.0.1 between {FIRST} and {LAST}. End servers that you "
            "do not need."
        )


def keep_or_choose(remembered: int | None) -> int:
    """The remembered port if it is free, else another one."""
    if remembered and is_free(remembered):
        return remembered
    for _ in range(TRIES):
        # Random, so that two homes that start at the same moment do not try the same ports in the same order.
        port = random.randrange(FIRST, LAST)  # noqa: S311 - no secret
        if is_free(port):
            return port
    raise NoFreePort


def is_listening(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1.0)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def is_free(port: int) -> bool:
    with socket.socket() as probe:
        # As the servers do: a connection that still lingers does not make the port taken.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
