"""Batches of model providers: requests that can wait are collected, sent together and answered whenever the provider is done."""
