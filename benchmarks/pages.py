"""How long people wait for a page of the console where there is much: 100,000 activities of 50 tenants.

`python -m benchmarks.pages` asks two web workers for every page of the navigation. Options and stored results are those of
`benchmarks.engine`.
"""

from __future__ import annotations

from benchmarks import engine

if __name__ == "__main__":
    engine.run("pages", "benchmarks.looking", __doc__ or "")
