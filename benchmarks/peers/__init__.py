"""The same work on other engines.

Work W: 1,000 runs of 3 steps by two worker processes. Each result (1 kB) is durable in PostgreSQL before the next step begins.
"""
