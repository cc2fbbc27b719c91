"""Queues: what waits for agents and what holds it up."""
