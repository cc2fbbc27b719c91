"""How 300 calls fare at a provider that allows 50 a minute: unthrottled, one after the other, behind a plain
token bucket, as many at once as went well lately, and under the governor.

`python -m benchmarks.providers` runs all of them in one run, against a provider of our own whose minute is short; `--minute-seconds 60`
gives it a real one, and takes a quarter of an hour for each repeat. Other options and stored results are those of `benchmarks.engine`.
"""

from __future__ import annotations

from benchmarks import engine

if __name__ == "__main__":
    engine.run(
        "providers",
        "benchmarks.throttling",
        __doc__ or "",
        numbers={"MINUTE_SECONDS": "how long a minute of the provider lasts"},
    )
