"""Turns a host name into addresses that may be called, within a time limit. All of them pass, or none."""

from __future__ import annotations

import socket
from ipaddress import ip_address
from queue import Empty, SimpleQueue
from threading import Thread

from agents.exceptions import RetryableAgentError
from agents.outbound import addresses
from agents.outbound.policy import Policy

_Answer = list[addresses.Address] | Exception


def permitted_addresses(policy: Policy, host: str, port: int, *, seconds: float) -> list[addresses.Address]:
    """Resolve once and judge every address found. A name with one bad address is refused whole.

    Raises `OutboundRefused`, or `RetryableAgentError` when the name service knows no address or does not
    answer.
    """
    found = _literal(host) or _look_up(host, seconds)
    exempt = policy.exempts(host, port)
    for address in found:
        policy.judge_address(address, exempt=exempt)
    return found


def _literal(host: str) -> list[addresses.Address]:
    try:
        return [ip_address(host)]
    except ValueError:
        return []


def _look_up(host: str, seconds: float) -> list[addresses.Address]:
    # The system's resolver takes no time limit and may think for half a minute. It is left behind in its own
    # thread if it does; this happens only when a connection is opened, not for each call.
    answers: SimpleQueue[_Answer] = SimpleQueue()
    Thread(target=_ask, args=(host, answers), name="resolve", daemon=True).start()
    try:
        answer = answers.get(timeout=seconds)
    except Empty as error:
        raise RetryableAgentError(
            f"The name {host} was not resolved in time.", code="agent_unreachable"
        ) from error
    if isinstance(answer, Exception) or not answer:
        raise RetryableAgentError(f"The name {host} cannot be resolved.", code="agent_unreachable")
    return answer


def _ask(host: str, answers: SimpleQueue[_Answer]) -> None:
    try:
        rows = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
        answers.put(list(dict.fromkeys(ip_address(row[4][0]) for row in rows)))
    except Exception as error:  # noqa: BLE001 - whatever it is, somebody waits for the answer
        answers.put(error)
