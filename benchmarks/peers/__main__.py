"""Work W (1,000 runs of 3 steps, 1 kB results, every step durable) here and on peers, on the same servers in the same run.

`python -m benchmarks.peers` runs all; `--only dbos` one; `--quick` with a tenth of the work. The peers get an environment of their own,
made with pip at the first time. Each figure is the median of `--repeats`, with the extremes.
"""

from benchmarks.engine import run

if __name__ == "__main__":
    run("peers", "benchmarks.peers.scenarios", __doc__ or "")
