"""Retention: how long rows of each kind are kept, by tenant, and how they are deleted a little at a time.

An app registers its kinds in a module `retention` of its own; nothing here knows what they are about.
"""
