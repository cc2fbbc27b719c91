"""The whole system on one machine: what `make up` and `make demo` run."""

from orchestrator.local.stack import LocalStack

__all__ = ("LocalStack",)
