"""One run of an agent: what it is asked, the tools it may call, what it reports, and what its result means for the activity.

Dispatch, which claims the work and calls the agent, is above; the adapters that reach agents are in `agents`.
"""
