"""How many runs two workers of two seats can have open at agents that accept now and call back later: 2,000, and 10,000.

`python -m benchmarks.held_runs --repeats 1` measures both, `--only runs_2000` the first; options and stored results are those of
`benchmarks.engine`.
"""

from __future__ import annotations

from benchmarks import engine

if __name__ == "__main__":
    engine.run("held_runs", "benchmarks.holding", __doc__ or "")
