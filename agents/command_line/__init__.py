"""Agents that are programs of this machine: started, watched, limited, read, and ended with everything that they started.

options      what an operator has set for such an agent, read by the letter
invocation   from a request to arguments, environment and limits
launcher     the few lines that run between the fork and the agent
processes    the agent's process: bytes in and out with constant memory, its end whatever happens
reading      its output, in one of three forms, as a result
transcripts  what it printed, kept for people
worktrees    a working copy of a repository for one run
traces       what a run leaves on this machine if its worker is killed, and how that is removed
"""
