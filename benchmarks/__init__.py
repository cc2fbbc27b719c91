"""Measurements. `python -m benchmarks.engine --help`; results are stored in `benchmarks/results/`."""
