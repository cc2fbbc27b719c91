"""Work and decisions of people: approvals, reviews and tasks, with their deadlines.

Each is an activity of a person. Work that waits for answers starts when all of them have arrived. A rejection creates a revision
(`revisions`); `pipelines.progression` handles its effect on a pipeline.
"""
