"""Schedules: when something is to run again and again, what came of each time, and what would.

Times are computed by `pipelines.timing` and by nothing else, so what a preview shows is what will happen. Firing is unique on (schedule,
nominal time): any number of schedulers may look at once, late or twice.

    editing      schedules saved, changed, switched and deleted     beat         the rows by which beat ticks
    firing       which times have come, and what of them            system_jobs  what background tasks do for executions
    expansion    from parameters to jobs                            preview      what a schedule would do
    lifecycle    executions at work, up to their status             executions   one firing or run by hand
    import_files schedules from a file
"""
