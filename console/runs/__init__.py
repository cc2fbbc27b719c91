"""Runs of pipelines: listed, drawn as they go on, cancelled, and done again from one of their steps."""
