"""Runs agents that are programs on this machine, and ends them with everything that they started.

options      validates the operator's settings for such an agent
invocation   builds arguments, environment and limits from a request
launcher     runs between the fork and the agent
processes    runs the process with constant memory, and guarantees that it ends
output       parses the standard output, in one of three formats, into a result
transcripts  stores the output for people
users        gives each run a separate user, and protects the worker's secrets from programs
workspaces   creates the folder and the working copy of a run, and removes them even if its worker is killed
"""
