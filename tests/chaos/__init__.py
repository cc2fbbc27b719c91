"""Fault injection from outside: a whole installation is tormented while tenants use it, and what they saw is checked against what is there.

`python -m tests.chaos` (`make chaos`) starts servers, web, workers and beats of its own, an agent that records every call, and proxies
between all of them. One seed decides what tenants ask for, how agents behave and which faults come when. See docs/chaos.md.
"""
