"""Sample agents: an HTTP server that does real text work without any model.

Copy this folder to start your own agent: it needs the Python standard library and nothing else. Read it in
the order of a request: `server`, `signature`, `job`, `switches`, `skills`, then one module per skill.
"""
