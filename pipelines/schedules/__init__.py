"""Schedules: fires them, runs their executions, and previews both.

Only `pipelines.timing` computes times, so a preview shows what will happen. Firings are unique by schedule and nominal time, so any
number of schedulers may run at the same time, late or twice.

    editing      checks, saves, switches and deletes schedules      beat         keeps the periodic tasks of Celery beat
    firing       records and fires the times that have come         system_jobs  background tasks for executions, and runs by hand
    expansion    expands parameters into jobs                       preview      forecasts what a schedule would do
    lifecycle    runs executions from expansion to their status     executions   creates and cancels executions
    import_files loads schedules from a file
"""
