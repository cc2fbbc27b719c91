"""Agents that are programs of this machine: started, watched, limited, read, and ended with everything that they started.

options      what an operator has set for such an agent, read by the letter
invocation   from a request to arguments, environment and limits
launcher     the few lines that run between the fork and the agent
processes    the agent's process: bytes in and out with constant memory, its end whatever happens
output       what it printed, in one of three forms, as a result
transcripts  what it printed, kept for people
users        a user of its own for each run, and what the worker keeps from programs
workspaces   the folder and the working copy of a run, and how they are removed if its worker is killed
"""
