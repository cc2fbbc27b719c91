"""How long people and agents wait for a decision.

`python -m benchmarks.approvals` runs both scenarios; options and stored results are those of `benchmarks.engine`.
"""

from __future__ import annotations

from benchmarks import engine

if __name__ == "__main__":
    engine.run("approvals", "benchmarks.deciding", __doc__ or "")
