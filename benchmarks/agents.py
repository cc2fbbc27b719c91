"""What agents do in benchmarks: nothing, or nothing for a while."""

from __future__ import annotations

import time

from agents.contracts import AgentRequest, Completed, Output

ONE_KILOBYTE = {"result": "x" * 1000}


def one_kilobyte(request: AgentRequest) -> Completed:
    """Answers at once with 1 kB of JSON."""
    return Completed(Output(data=ONE_KILOBYTE))


def fifty_milliseconds(request: AgentRequest) -> Completed:
    """Waits as an agent that asks somebody else would."""
    time.sleep(0.05)
    return Completed(Output(data=ONE_KILOBYTE))


def one_second(request: AgentRequest) -> Completed:
    """As `fifty_milliseconds`, for a second."""
    time.sleep(1.0)
    return Completed(Output(data=ONE_KILOBYTE))


def listing(request: AgentRequest) -> Completed:
    """As `one_kilobyte`; the first step answers with as many items as the parameter `width` says."""
    if request.pipeline_step == "first":
        return Completed(Output(data=list(range(request.params["width"]))))
    return Completed(Output(data=ONE_KILOBYTE))
