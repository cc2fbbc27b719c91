"""Fault injection from outside: faults hit a whole installation while tenants use it, and the records of clients and agents are checked.

`python -m tests.chaos` (`make chaos`) starts its own servers, web, workers and beats, an agent that records every call, and proxies
between all of them. One seed decides what tenants submit, how agents behave and which faults occur when. See docs/chaos.md.
"""
