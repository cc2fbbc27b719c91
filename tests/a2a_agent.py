"""An agent that speaks the Agent2Agent protocol, on the official library's own server, and does what a test says."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Awaitable, Callable
from typing import Any, Self

import uvicorn
from a2a.helpers import new_task_from_user_message
from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.events import EventQueue
from a2a.server.request_handlers import DefaultRequestHandler
from a2a.server.routes import create_agent_card_routes, create_jsonrpc_routes, create_rest_routes
from a2a.server.tasks import InMemoryTaskStore, TaskUpdater
from a2a.types import AgentCapabilities, AgentCard, AgentInterface, Message, Part, TaskState
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response

#: What the agent does with one message. What it says goes through the updater; the queue is for agents that answer without a task.
Turn = Callable[[TaskUpdater, EventQueue], Awaitable[None]]


class A2AAgent:
    """Runs in a thread of its own. `turns` are what it does with the messages that come, in order; the last one stays."""

    def __init__(self, *, streaming: bool = True, version: str = "1.0") -> None:
        self.turns: list[Turn] = [says()]
        self.heard: list[Message] = []
        self.calls: list[tuple[str, dict[str, str]]] = []  # method of the protocol, and headers
        self.cancelled: list[str] = []
        # A status for every call but the card's, and headers.
        self.refusing: tuple[int, dict[str, str]] | None = None
        self.refused_methods: dict[str, int] = {}  # method -> status
        self.hang_up_after: dict[
            str, int
        ] = {}  # method -> parts of the answer after which the connection breaks
        self.forgotten: set[str] = set()  # tasks that it does not know any more
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.place = f"127.0.0.1:{self._socket.getsockname()[1]}"
        self.url = f"http://{self.place}"
        self.card = AgentCard(
            name="Titles", description="Writes titles.", version="1.0.0", default_input_modes=["text/plain"],
            default_output_modes=["text/plain"], capabilities=AgentCapabilities(streaming=streaming),
            supported_interfaces=[
                AgentInterface(url=f"{self.url}/rpc", protocol_binding="JSONRPC", protocol_version=version)
            ],
        )  # fmt: skip
        self._server = uvicorn.Server(uvicorn.Config(self._app(), log_level="critical", lifespan="off"))
        self._thread = threading.Thread(target=lambda: self._server.run(sockets=[self._socket]), daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.should_exit = self._server.force_exit = True
        self._thread.join(60)
        self._socket.close()

    def _app(self) -> Any:
        handler = DefaultRequestHandler(
            agent_executor=_Executor(self), task_store=_Tasks(self), agent_card=self.card
        )
        routes = [
            *create_agent_card_routes(self.card),
            *create_jsonrpc_routes(handler, "/rpc", enable_v0_3_compat=True),
            *create_rest_routes(handler, path_prefix="/rest"),
        ]
        return _Faults(self, Starlette(routes=routes))


class _Tasks(InMemoryTaskStore):
    def __init__(self, agent: A2AAgent) -> None:
        super().__init__()
        self.agent = agent

    async def get(self, task_id: str, context: Any) -> Any:
        return None if task_id in self.agent.forgotten else await super().get(task_id, context)


class _Executor(AgentExecutor):
    def __init__(self, agent: A2AAgent) -> None:
        self.agent = agent

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        assert context.message is not None
        self.agent.heard.append(context.message)
        turn = self.agent.turns.pop(0) if len(self.agent.turns) > 1 else self.agent.turns[0]
        if context.current_task is None and turn.__name__ != "at_once":
            await event_queue.enqueue_event(new_task_from_user_message(context.message))
        await turn(TaskUpdater(event_queue, context.task_id or "", context.context_id or ""), event_queue)

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        self.agent.cancelled.append(context.task_id or "")
        await TaskUpdater(event_queue, context.task_id or "", context.context_id or "").cancel()


class _Faults:
    """Stands before the agent: notes what is called, refuses and breaks off as the test says."""

    def __init__(self, agent: A2AAgent, app: Any) -> None:
        self.agent, self.app = agent, app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["path"] != "/rpc":
            self.agent.calls.append(("card", dict(Request(scope).headers)))
            await self.app(scope, receive, send)
            return
        request = Request(scope, receive)
        body = await request.body()
        method = (await request.json())["method"]
        self.agent.calls.append((method, dict(request.headers)))
        refusing = self.agent.refusing
        if method in self.agent.refused_methods:
            refusing = (self.agent.refused_methods[method], {})
        if refusing is not None:
            status, headers = refusing
            await Response("made to fail", status, headers)(scope, receive, send)
            return
        told = iter([{"type": "http.request", "body": body, "more_body": False}])

        async def replayed() -> Any:
            return next(told, None) or await receive()

        left = self.agent.hang_up_after.get(method)

        async def counted(event: Any) -> None:
            nonlocal left
            if left is not None and event["type"] == "http.response.body":
                left -= 1
                if left < 0:
                    raise ConnectionAbortedError("made to break off")
            await send(event)

        await self.app(scope, replayed, counted)


def says(text: str = "Done.", **usage: Any) -> Turn:
    """Ends the task with this as its artifact."""

    async def turn(task: TaskUpdater, queue: EventQueue) -> None:
        await task.start_work()
        await task.add_artifact([Part(text=text)], artifact_id="a")
        await task.update_status(TaskState.TASK_STATE_COMPLETED, metadata={"usage": usage} if usage else None)

    return turn


def hangs() -> Turn:
    """Begins, and never ends by itself."""

    async def turn(task: TaskUpdater, queue: EventQueue) -> None:
        await task.start_work()
        await asyncio.Event().wait()

    return turn


def ends(state: TaskState, text: str = "", **usage: Any) -> Turn:
    """Brings the task into this state, with a message."""

    async def turn(task: TaskUpdater, queue: EventQueue) -> None:
        await task.start_work()
        said = task.new_agent_message([Part(text=text)]) if text else None
        await task.update_status(state, said, metadata={"usage": usage} if usage else None)

    return turn


def answers_at_once(*parts: Part) -> Turn:
    """Answers with a message, without a task."""

    async def at_once(task: TaskUpdater, queue: EventQueue) -> None:
        message = task.new_agent_message(list(parts))
        message.task_id = ""
        await queue.enqueue_event(message)

    return at_once
