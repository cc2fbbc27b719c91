"""How fast schedules fire, and how fast their rows become jobs.

`python -m benchmarks.schedules` runs all scenarios; options and stored results are those of `benchmarks.engine`.
"""

from __future__ import annotations

from benchmarks import engine

if __name__ == "__main__":
    engine.run("schedules", "benchmarks.firing", __doc__ or "")
