"""Inline agents of the benchmarks."""

from __future__ import annotations

import time

from agents.contracts import AgentRequest, Completed, Output

ONE_KILOBYTE = {"result": "x" * 1000}


def one_kilobyte(request: AgentRequest) -> Completed:
    """Return 1 kB of JSON immediately."""
    return Completed(Output(data=ONE_KILOBYTE))


def fifty_milliseconds(request: AgentRequest) -> Completed:
    """As `one_kilobyte`, after 50 ms of waiting."""
    time.sleep(0.05)
    return Completed(Output(data=ONE_KILOBYTE))


def one_second(request: AgentRequest) -> Completed:
    """As `one_kilobyte`, after a second of waiting."""
    time.sleep(1.0)
    return Completed(Output(data=ONE_KILOBYTE))


def listing(request: AgentRequest) -> Completed:
    """As `one_kilobyte`, but the step `first` returns a list of `width` items, a parameter of the run."""
    if request.pipeline_step == "first":
        return Completed(Output(data=list(range(request.params["width"]))))
    return Completed(Output(data=ONE_KILOBYTE))
