"""Dead letters: people are told of work that failed for good, once, and retry it or give it up, one by one or all alike.

The failure itself is recorded by `dead_letter_records`, in its own transaction. Whoever dies half-way here has done nothing.
"""
