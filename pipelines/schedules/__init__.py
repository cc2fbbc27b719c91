"""Schedules: when something is to run again and again, what came of each time, and what would.

Times are computed by `pipelines.timing` and by nothing else, so what a preview shows is what will happen. Firing is unique on (schedule,
nominal time): any number of schedulers may look at once, late or twice.

    plans       a schedule's row as a timing                 targets     what is run: activities or pipeline runs
    expansion   from parameters to jobs; the preview         executions  one firing at work, up to its status
    firing      which times have come, and what of them      running     by hand
    beat        the rows by which beat ticks                 tending     what background tasks do for executions
    looking     which times have come, which were missed     overlapping what an earlier execution makes of them
    recording   they go on record, with their executions     moving_on   when to look again
"""
