"""Schedules: what comes, what became of the times that passed, and times tried out before anything is saved."""
