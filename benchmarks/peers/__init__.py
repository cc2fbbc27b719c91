"""The same work on other engines, on the same servers in the same run.

Work W is 1,000 runs of 3 steps whose results of 1 kB are durable in PostgreSQL before the next step begins, done by two worker processes.
"""
