"""The stream of events against a server of the test's own: the format in any pieces, and what happens when a connection ends."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from answering import TOKEN
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import orchestrator_client as oc
from orchestrator_client.events import Decoder

STREAM = (
    "\ufeff: welcome\nretry: 7\n\n"
    'id: 1\nevent: activity.settled\ndata: {"id": "ä\u2028b"}\n\n'
    "data: one\r\ndata: two\r\n\r\n"
    "id: 2\rdata:plain\r\r"
    "event: nothing\n\n"
    "id: 3\ndata: [1]\nunknown: x\nid: bad\0id\n\n"
    "data: cut off before its end"
).encode()
EVENTS = [
    oc.Event("activity.settled", {"id": "ä\u2028b"}, "1"),
    oc.Event("message", "one\ntwo", "1"),
    oc.Event("message", "plain", "2"),
    oc.Event("message", [1], "3"),
]


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # a busy machine is no fault
@given(cuts=st.lists(st.integers(0, len(STREAM)), max_size=12))
def test_a_stream_is_read_alike_whatever_pieces_it_comes_in(cuts: list[int]) -> None:
    decoder, found = Decoder(), []
    edges = [0, *sorted(cuts), len(STREAM)]

    for start, end in itertools.pairwise(edges):
        found += decoder.feed(STREAM[start:end])

    assert found == EVENTS
    assert (decoder.last_id, decoder.retry_ms) == ("3", 7)


def test_an_empty_id_means_that_there_is_none_to_go_on_from() -> None:
    decoder = Decoder("5")

    assert [event.id for event in decoder.feed(b"id\ndata: x\n\n")] == [""]
    assert decoder.last_id == ""


Script = list[Callable[[Any], None]]


def streams(*pieces: bytes) -> Callable[[Any], None]:
    """Answer with these pieces, then end the connection."""

    def answer(handler: Any) -> None:
        handler.send_response(200)
        handler.send_header("Content-Type", "text/event-stream; charset=utf-8")
        handler.end_headers()
        for piece in pieces:
            handler.wfile.write(piece)
            handler.wfile.flush()

    return answer


def answers(status: int, body: bytes = b"{}", **headers: str) -> Callable[[Any], None]:
    def answer(handler: Any) -> None:
        handler.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            handler.send_header(name.replace("_", "-"), value)
        handler.end_headers()
        handler.wfile.write(body)

    return answer


def breaks_off(handler: Any) -> None:
    """Promise more than comes."""
    handler.send_response(200)
    handler.send_header("Content-Type", "text/event-stream")
    handler.send_header("Content-Length", "1000")
    handler.end_headers()
    handler.wfile.write(b"id: 8\ndata: 8\n\n")
    handler.wfile.flush()


class Telling:
    """A server that answers each connection with the next of its script, and ends with 204."""

    def __init__(self, script: Script) -> None:
        self.asked: list[dict[str, str]] = []
        self.paths: list[str] = []
        outer, left = self, list(script)

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.paths.append(self.path)
                outer.asked.append({name.lower(): value for name, value in self.headers.items()})
                (left.pop(0) if left else answers(204, b""))(self)

            def log_message(self, format: str, *args: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.01})
        self.thread.start()

    def close(self) -> None:
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()

    def last_ids(self) -> list[str | None]:
        return [headers.get("last-event-id") for headers in self.asked]


@pytest.fixture
def telling() -> Iterator[Callable[..., Telling]]:
    made: list[Telling] = []

    def start(*script: Callable[[Any], None]) -> Telling:
        made.append(Telling(list(script)))
        return made[-1]

    yield start
    for server in made:
        server.close()


@pytest.fixture
def pauses() -> list[float]:
    return []


def following(server: Telling, pauses: list[float], **options: Any) -> oc.Client:
    client = oc.Client(server.url, TOKEN, retries=oc.RetryPolicy(chance=lambda: 0.0), trust_env=False)
    client._sender.sleep = pauses.append
    return client


def test_events_are_asked_for_as_a_stream_by_a_bearer(
    telling: Callable[..., Telling], pauses: list[float]
) -> None:
    server = telling(streams(STREAM))

    with following(server, pauses) as client:
        found = list(client.events.stream(kind=["a", "b"]))

    assert found == EVENTS
    assert server.asked[0]["accept"] == "text/event-stream"
    assert server.asked[0]["authorization"] == f"Bearer {TOKEN}"
    assert server.paths[0] == "/api/v1/events/?kind=a&kind=b"


def test_a_stream_that_ends_is_gone_on_with_where_it_was(
    telling: Callable[..., Telling], pauses: list[float]
) -> None:
    server = telling(streams(b"retry: 2500\nid: 1\ndata: 1\n\n"), breaks_off, streams(b"id: 9\ndata: 9\n\n"))

    with following(server, pauses) as client:
        stream = client.events.stream()
        found = [event.data for event in stream]

    assert found == [1, 8, 9]
    assert server.last_ids() == [None, "1", "8", "9"]
    assert pauses == [2.5, 2.5, 2.5]
    assert stream.last_event_id == "9"


@pytest.mark.parametrize("last", ["41", 41])  # as a stream and as a list return it
def test_a_follower_that_begins_anew_says_where_it_was(
    telling: Callable[..., Telling], pauses: list[float], last: Any
) -> None:
    server = telling()

    with following(server, pauses) as client:
        assert list(client.events.stream(last_event_id=last)) == []

    assert server.last_ids() == ["41"]
    assert "last_event_id" not in server.paths[0]


def test_an_event_that_was_cut_off_is_not_told_by_half(
    telling: Callable[..., Telling], pauses: list[float]
) -> None:
    server = telling(
        streams(b"id: 1\ndata: 1\n\nid: 2\ndata: hal"), streams(b"ta: x\n\nid: 2\ndata: half\n\n")
    )

    with following(server, pauses) as client:
        found = [(event.id, event.data) for event in client.events.stream()]

    # The id of the half event was read, and it must not count either.
    assert found == [("1", 1), ("2", "half")]
    assert server.last_ids()[1] == "1"


def test_passing_refusals_are_waited_out_ever_longer_until_something_comes(
    telling: Callable[..., Telling], pauses: list[float]
) -> None:
    server = telling(
        answers(503), answers(429, Retry_After="9"), answers(503), streams(b"data: 1\n\n"), answers(503)
    )

    with following(server, pauses) as client:
        assert [event.data for event in client.events.stream()] == [1]

    assert pauses == [0.5, 9.0, 2.0, 0.5, 1.0]


def test_connections_that_were_open_without_an_event_are_not_waited_out_longer(
    telling: Callable[..., Telling], pauses: list[float]
) -> None:
    """A proxy may end each connection after a minute, and for a quiet tenant only comments come meanwhile."""
    quiet = streams(b"retry: 2000\nid: 7\n\n", b": still here\nid: 7\n\n")
    server = telling(*[quiet] * 6)

    with following(server, pauses) as client:
        assert list(client.events.stream()) == []

    assert pauses == [2.0] * 6


@pytest.mark.parametrize(
    ("status", "kind"),
    [(401, oc.Unauthenticated), (403, oc.Forbidden), (410, oc.Gone), (500, oc.ServerError)],
)
def test_a_final_refusal_is_raised(
    telling: Callable[..., Telling], pauses: list[float], status: int, kind: type[Exception]
) -> None:
    server = telling(streams(b"data: 1\n\n"), answers(status, b'{"code": "x", "detail": "No."}'))

    with following(server, pauses) as client, pytest.raises(kind, match=r"x: No\."):
        list(client.events.stream())


def test_what_is_no_stream_is_said_to_be_so(telling: Callable[..., Telling], pauses: list[float]) -> None:
    with (
        following(telling(answers(200, b"{}", Content_Type="application/json")), pauses) as client,
        pytest.raises(oc.UnreadableAnswer, match="did not return a stream"),
    ):
        list(client.events.stream())


def test_it_is_the_same_for_those_who_await(telling: Callable[..., Telling]) -> None:
    server = telling(streams(b"retry: 1\nid: 1\ndata: 1\n\n"), breaks_off, answers(503), streams(STREAM))

    async def follow() -> list[Any]:
        policy = oc.RetryPolicy(base_seconds=0.001, chance=lambda: 0.0)
        async with oc.AsyncClient(server.url, TOKEN, retries=policy, trust_env=False) as client:
            return [event async for event in client.events.stream()]

    found = asyncio.run(follow())

    assert [event.data for event in found[:2]] == [1, 8]
    assert found[2:] == EVENTS
    assert server.last_ids() == [None, "1", "8", "8", "3"]


def test_leaving_the_loop_lets_the_connection_go(
    telling: Callable[..., Telling], pauses: list[float]
) -> None:
    server = telling(streams(b"data: 1\n\ndata: 2\n\n"))

    with following(server, pauses) as client:
        stream = iter(client.events.stream())
        assert next(stream).data == 1
        stream.close()  # type: ignore[attr-defined]
        assert client._http._transport._pool.connections == []  # type: ignore[attr-defined]
