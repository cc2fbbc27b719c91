"""Agents: which versions serve, how runs went lately, and versions brought into production."""
