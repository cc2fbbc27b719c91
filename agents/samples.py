"""Inline agents for trials and benchmarks."""

from __future__ import annotations

from datetime import date, timedelta

from agents.contracts import AgentRequest, Completed, Output

_NOTHING = Completed(Output())


def echo(request: AgentRequest) -> Output:
    """Answers with its parameters as data and the first line of its prompt as content."""
    return Output(content=request.prompt.partition("\n")[0], data=dict(request.params))


def plan_month(request: AgentRequest) -> Output:
    """A planner for the role `activity-planner`. It plans the period's target number of runs, or one for each week, with the pipelines in
    turn, spread evenly over the days.

    It does not consider what the runs are about; give the role a model for that.
    """
    params = request.params
    period, pipelines = params["period"], [pipeline["key"] for pipeline in params["pipelines"]]
    begins, ends = (date.fromisoformat(period[name]) for name in ("starts_on", "ends_on"))
    days = (ends - begins).days + 1
    runs = (period.get("target") or days // 7) if pipelines else 0
    items = [
        {
            "pipeline": pipelines[number % len(pipelines)],
            "name": f"{params['deliverable']['name']} {number + 1} of {runs}",
            "not_before": f"{begins + timedelta(days=number * days // runs)}T00:00:00Z",
        }
        for number in range(runs)
    ]
    return Output(data={"items": items})


def noop(request: AgentRequest) -> Completed:
    """Answers with nothing, as fast as possible."""
    return _NOTHING
