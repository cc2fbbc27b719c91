"""What one tenant at full speed costs its neighbour: slow receivers of webhooks, heavy pipelines, and sixteen clients at once.

`python -m benchmarks.neighbours --repeats 1` measures all, `--only slow_receivers` the first; options and stored results are those of
`benchmarks.engine`.
"""

from __future__ import annotations

from benchmarks import engine

if __name__ == "__main__":
    engine.run("neighbours", "benchmarks.crowding", __doc__ or "")
