"""Inline agents to try things out and to measure the machinery around them."""

from __future__ import annotations

from agents.contracts import AgentRequest, Completed, Output

_NOTHING = Completed(Output())


def echo(request: AgentRequest) -> Output:
    """Answers with its parameters as data and the first line of its prompt as content."""
    return Output(content=request.prompt.partition("\n")[0], data=dict(request.params))


def noop(request: AgentRequest) -> Completed:
    """Answers with nothing, as fast as possible."""
    return _NOTHING
