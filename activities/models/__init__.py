"""Activities and what belongs to them. Import from here; the files are an inner matter."""

from activities.models.activity import Activity
from activities.models.event import ActivityEvent
from activities.models.output import OutputSpool
from activities.models.run import ActivityRun, WorkerProcess
from activities.models.wake import Wake

__all__ = ("Activity", "ActivityEvent", "ActivityRun", "OutputSpool", "Wake", "WorkerProcess")
