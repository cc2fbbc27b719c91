"""Dead letters: what failed alike together, counted and then replayed or given up."""
