import django.contrib.postgres.fields
import django.core.validators
import django.db.models.deletion
import django.db.models.functions.datetime
from django.db import migrations, models

import tenants.identifiers


class Migration(migrations.Migration):
    dependencies = [
        ("activities", "0036_room_for_later_versions"),
    ]

    operations = [
        migrations.AlterField(
            model_name="activity",
            name="agent_options",
            field=models.JSONField(
                blank=True,
                db_default={},
                default=dict,
                help_text="Options for its agent in addition to the role's settings: model, max_turns.",
            ),
        ),
        migrations.AlterField(
            model_name="activity",
            name="decision_rules",
            field=models.JSONField(
                blank=True,
                help_text="How people decide it: options, quorum, who must not decide, and what happens if nobody does.",
                null=True,
            ),
        ),
        migrations.AlterField(
            model_name="activity",
            name="fence",
            field=models.IntegerField(
                default=0, help_text="Increases with every claim. A write with a lower number is refused."
            ),
        ),
        migrations.AlterField(
            model_name="activity",
            name="files",
            field=models.JSONField(
                blank=True,
                db_default=[],
                default=list,
                help_text="Paths and globs. Other activities of the tenant with overlapping paths never run at the same time.",
            ),
        ),
        migrations.AlterField(
            model_name="activity",
            name="group_scope",
            field=models.CharField(
                choices=[("role", "Role"), ("tenant", "Tenant")],
                db_default="role",
                default="role",
                help_text="Whether its group consists of work of its role, or of all roles of the tenant.",
                max_length=8,
            ),
        ),
        migrations.AlterField(
            model_name="activity",
            name="indexed_status",
            field=models.CharField(
                db_default="open",
                editable=False,
                help_text="See `states.INDEXED`. A trigger sets it.",
                max_length=20,
            ),
        ),
        migrations.AlterField(
            model_name="activity",
            name="input",
            field=models.JSONField(
                blank=True, help_text="Inline content and data, or references by step name.", null=True
            ),
        ),
        migrations.AlterField(
            model_name="activity",
            name="input_ref",
            field=models.UUIDField(blank=True, help_text="The run whose output is the input.", null=True),
        ),
        migrations.AlterField(
            model_name="activity",
            name="mailbox",
            field=models.ForeignKey(
                blank=True,
                db_constraint=False,
                db_index=False,
                help_text="The mailbox whose conversation it continues, instead of its deliverable's.",
                null=True,
                on_delete=django.db.models.deletion.CASCADE,
                related_name="+",
                to="activities.mailbox",
            ),
        ),
        migrations.AlterField(
            model_name="activity",
            name="period_id",
            field=models.UUIDField(
                blank=True,
                help_text="The period (month) of its deliverable that it plans or belongs to.",
                null=True,
            ),
        ),
        migrations.AlterField(
            model_name="activity",
            name="pipeline_id",
            field=models.UUIDField(
                blank=True, help_text="The pipeline of its run, because pauses name pipelines.", null=True
            ),
        ),
        migrations.AlterField(
            model_name="activity",
            name="run_now_at",
            field=models.DateTimeField(
                blank=True,
                editable=False,
                help_text="When a person requested a run in spite of pauses. The next run clears it.",
                null=True,
            ),
        ),
        migrations.AlterField(
            model_name="activity",
            name="template",
            field=models.CharField(
                blank=True, help_text="Key of the template of its step.", max_length=63, null=True
            ),
        ),
        migrations.AlterField(
            model_name="activity",
            name="version",
            field=models.IntegerField(
                default=1, help_text="Increases with every transition; used as the ETag."
            ),
        ),
        migrations.AlterField(
            model_name="activityrun",
            name="beat_at",
            field=models.DateTimeField(
                help_text="When the last heartbeat arrived; only for people. Recovery compares only `beats`.",
                null=True,
            ),
        ),
        migrations.AlterField(
            model_name="activityrun",
            name="beats",
            field=models.IntegerField(
                default=0, help_text="Number of heartbeats, if the agent has accepted the run."
            ),
        ),
        migrations.AlterField(
            model_name="activityrun",
            name="ended_by_tool",
            field=models.CharField(
                blank=True,
                db_default="",
                help_text="The tool with which the agent suspended its work. Such a run has no output.",
                max_length=32,
            ),
        ),
        migrations.AlterField(
            model_name="activityrun",
            name="parked",
            field=models.BooleanField(
                db_default=False,
                default=False,
                help_text="Whether it waits for a batch. It holds no slots while it waits.",
            ),
        ),
        migrations.AlterField(
            model_name="activityrun",
            name="worker_id",
            field=models.UUIDField(
                help_text="The process that waits for the agent. Empty after the agent has accepted the work.",
                null=True,
            ),
        ),
        migrations.AlterField(
            model_name="alert",
            name="dedup_key",
            field=models.CharField(
                blank=True,
                help_text="No second alert is created with the same key.",
                max_length=200,
                null=True,
            ),
        ),
        migrations.AlterField(
            model_name="alert",
            name="facts",
            field=models.JSONField(blank=True, default=dict, help_text="Ids and numbers for programs."),
        ),
        migrations.AlterField(
            model_name="alertdelivery",
            name="attempts",
            field=models.PositiveSmallIntegerField(
                default=0, help_text="Also identifies the claim: only the latest claim may record a result."
            ),
        ),
        migrations.AlterField(
            model_name="alertdelivery",
            name="channel_id",
            field=models.UUIDField(blank=True, help_text="Empty for the platform's own channels.", null=True),
        ),
        migrations.AlterField(
            model_name="alertdelivery",
            name="channel_name",
            field=models.CharField(help_text="The channel's name when the alert was raised.", max_length=100),
        ),
        migrations.AlterField(
            model_name="alertdelivery",
            name="id",
            field=models.UUIDField(
                default=tenants.identifiers.uuid7,
                editable=False,
                help_text="Also used as the `webhook-id` and the Message-ID.",
                primary_key=True,
                serialize=False,
            ),
        ),
        migrations.AlterField(
            model_name="alertdelivery",
            name="next_attempt_at",
            field=models.DateTimeField(
                db_default=django.db.models.functions.datetime.Now(),
                help_text="When a deliverer sends it next, or checks the result of an interrupted attempt.",
            ),
        ),
        migrations.AlterField(
            model_name="approval",
            name="options",
            field=models.JSONField(
                blank=True,
                default=list,
                help_text="The options of the answer. If empty, the answer is yes or no.",
            ),
        ),
        migrations.AlterField(
            model_name="approval",
            name="requested_identity",
            field=models.CharField(
                help_text="The identity of the requester. Unlike a name, nobody can choose it.",
                max_length=100,
            ),
        ),
        migrations.AlterField(
            model_name="approvallink",
            name="reason",
            field=models.CharField(
                blank=True, default="", help_text="Why the activity was skipped.", max_length=200
            ),
        ),
        migrations.AlterField(
            model_name="batchitem",
            name="begun",
            field=models.JSONField(
                help_text="An answer with which the conversation continues on the real-time route.", null=True
            ),
        ),
        migrations.AlterField(
            model_name="batchitem",
            name="body",
            field=models.JSONField(help_text="The request. Empty after the item was closed.", null=True),
        ),
        migrations.AlterField(
            model_name="batchitem",
            name="briefing",
            field=models.CharField(
                blank=True,
                default="",
                help_text="A digest of what the agent was told about its work.",
                max_length=64,
            ),
        ),
        migrations.AlterField(
            model_name="batchitem",
            name="bytes",
            field=models.PositiveIntegerField(help_text="The size of the request."),
        ),
        migrations.AlterField(
            model_name="batchitem",
            name="leave_at",
            field=models.DateTimeField(help_text="When it moves to the real-time route at the latest."),
        ),
        migrations.AlterField(
            model_name="bulkitem",
            name="alone",
            field=models.BooleanField(
                default=False, help_text="Whether it is processed in a transaction of its own."
            ),
        ),
        migrations.AlterField(
            model_name="bulkjob",
            name="arguments",
            field=models.JSONField(
                default=dict, help_text="The arguments of the action: a reason, an assignee, or a priority."
            ),
        ),
        migrations.AlterField(
            model_name="bulkjob",
            name="filter",
            field=models.JSONField(
                default=dict, help_text="The filter from the request. The items were selected with it once."
            ),
        ),
        migrations.AlterField(
            model_name="bulkjob",
            name="updated_at",
            field=models.DateTimeField(
                db_default=django.db.models.functions.datetime.Now(),
                editable=False,
                help_text="When its progress was last recorded.",
            ),
        ),
        migrations.AlterField(
            model_name="condition",
            name="facts",
            field=models.JSONField(default=dict, help_text="Facts for programs, as in its alerts."),
        ),
        migrations.AlterField(
            model_name="condition",
            name="name",
            field=models.CharField(help_text="Its kind and its subject.", max_length=400, unique=True),
        ),
        migrations.AlterField(
            model_name="condition",
            name="over",
            field=models.CharField(help_text="The message to people when it has ended.", max_length=200),
        ),
        migrations.AlterField(
            model_name="condition",
            name="tenants",
            field=models.JSONField(default=list, help_text="Ids of the tenants that were notified."),
        ),
        migrations.AlterField(
            model_name="counter",
            name="le",
            field=models.FloatField(
                help_text="The upper bound of the bucket. Infinity for the last bucket, and if it is not a histogram."
            ),
        ),
        migrations.AlterField(
            model_name="counter",
            name="role",
            field=models.CharField(
                help_text="Empty for people's work, and where there is no role.", max_length=63
            ),
        ),
        migrations.AlterField(
            model_name="counter",
            name="total",
            field=models.FloatField(help_text="The sum of the observed values."),
        ),
        migrations.AlterField(
            model_name="countingmark",
            name="at",
            field=models.DateTimeField(
                db_default=django.db.models.functions.datetime.Now(), help_text="When a leader last counted."
            ),
        ),
        migrations.AlterField(
            model_name="countingmark",
            name="barrier",
            field=models.BigIntegerField(default=0, help_text="The id of a transaction, with its epoch."),
        ),
        migrations.AlterField(
            model_name="countingmark",
            name="complete_at",
            field=models.DateTimeField(
                db_default=django.db.models.functions.datetime.Now(),
                help_text="Everything until this time is included in the counters.",
            ),
        ),
        migrations.AlterField(
            model_name="deadletter",
            name="cost_usd",
            field=models.DecimalField(
                decimal_places=6,
                default=0,
                help_text="The cost that all runs so far have reported.",
                max_digits=14,
            ),
        ),
        migrations.AlterField(
            model_name="deadletter",
            name="escalation_id",
            field=models.UUIDField(help_text="The activity that asks a person to handle it.", null=True),
        ),
        migrations.AlterField(
            model_name="deadletter",
            name="fingerprint",
            field=models.CharField(help_text="Equal for similar failures.", max_length=64),
        ),
        migrations.AlterField(
            model_name="deadletter",
            name="handled_at",
            field=models.DateTimeField(help_text="When people were notified.", null=True),
        ),
        migrations.AlterField(
            model_name="deadletter",
            name="planning_id",
            field=models.UUIDField(help_text="The activity that woke a planner because of it.", null=True),
        ),
        migrations.AlterField(
            model_name="deadline",
            name="human_role",
            field=models.CharField(
                blank=True,
                default="",
                help_text="The role that is reminded, or that is asked from then on.",
                max_length=63,
            ),
        ),
        migrations.AlterField(
            model_name="failuresinarow",
            name="error_code",
            field=models.CharField(
                blank=True, default="", help_text="The error code of the last failure.", max_length=200
            ),
        ),
        migrations.AlterField(
            model_name="failuresinarow",
            name="since",
            field=models.DateTimeField(help_text="When the first failure was noticed."),
        ),
        migrations.AlterField(
            model_name="heldanswer",
            name="refusal",
            field=models.CharField(
                blank=True,
                default="",
                help_text="Why it could not take effect. Empty while it is held.",
                max_length=500,
            ),
        ),
        migrations.AlterField(
            model_name="heldanswer",
            name="said",
            field=models.JSONField(default=dict, help_text="Notes, chosen option and result."),
        ),
        migrations.AlterField(
            model_name="heldanswer",
            name="words",
            field=models.CharField(help_text="The name of the action once it is done.", max_length=60),
        ),
        migrations.AlterField(
            model_name="leaderlease",
            name="epoch",
            field=models.BigIntegerField(
                help_text="Increases whenever the lease gets another holder. Writes of earlier epochs are refused."
            ),
        ),
        migrations.AlterField(
            model_name="leaderlease",
            name="expires_at",
            field=models.DateTimeField(help_text="After this time, another process may take over."),
        ),
        migrations.AlterField(
            model_name="leaderlease",
            name="holder",
            field=models.UUIDField(help_text="A random id that the process generates when it starts."),
        ),
        migrations.AlterField(
            model_name="leaderlease",
            name="outage_began_at",
            field=models.DateTimeField(
                help_text="The time from which nobody could renew the lease, in the last outage of PostgreSQL.",
                null=True,
            ),
        ),
        migrations.AlterField(
            model_name="leaderlease",
            name="outage_ended_at",
            field=models.DateTimeField(
                help_text="The time from which the lease could be renewed again.", null=True
            ),
        ),
        migrations.AlterField(
            model_name="mailbox",
            name="agent_role",
            field=models.CharField(
                blank=True,
                help_text="The role that consumes it. If empty, clients take its items.",
                max_length=63,
                null=True,
            ),
        ),
        migrations.AlterField(
            model_name="mailbox",
            name="fence",
            field=models.BigIntegerField(default=0, help_text="Increases with every batch that is taken."),
        ),
        migrations.AlterField(
            model_name="mailboxitem",
            name="activity_id",
            field=models.UUIDField(
                blank=True, help_text="The activity in which an agent receives it.", null=True
            ),
        ),
        migrations.AlterField(
            model_name="mailboxitem",
            name="batch_id",
            field=models.UUIDField(blank=True, help_text="The last batch that contained it.", null=True),
        ),
        migrations.AlterField(
            model_name="mailboxitem",
            name="due_at",
            field=models.DateTimeField(
                blank=True, help_text="It is not delivered before this time. Empty: at once.", null=True
            ),
        ),
        migrations.AlterField(
            model_name="mailboxitem",
            name="scope_key",
            field=models.CharField(
                blank=True,
                db_default="",
                default="",
                help_text="Only items with the same scope key are delivered together.",
                max_length=200,
            ),
        ),
        migrations.AlterField(
            model_name="notificationchannel",
            name="digest",
            field=models.CharField(
                choices=[("off", "Off"), ("daily", "Daily"), ("weekly", "Weekly")],
                db_default="off",
                default="off",
                help_text="For email: a daily or weekly summary.",
                max_length=6,
            ),
        ),
        migrations.AlterField(
            model_name="notificationchannel",
            name="digest_day",
            field=models.CharField(
                blank=True,
                choices=[
                    ("monday", "Monday"),
                    ("tuesday", "Tuesday"),
                    ("wednesday", "Wednesday"),
                    ("thursday", "Thursday"),
                    ("friday", "Friday"),
                    ("saturday", "Saturday"),
                    ("sunday", "Sunday"),
                ],
                db_default="",
                default="",
                help_text="For weekly digests. If empty, Monday.",
                max_length=9,
            ),
        ),
        migrations.AlterField(
            model_name="notificationchannel",
            name="digest_hour",
            field=models.PositiveSmallIntegerField(
                blank=True,
                help_text="0 to 23, in the tenant's time zone. If empty, the platform's setting, usually 7 for daily and 9 for weekly digests.",
                null=True,
                validators=[django.core.validators.MaxValueValidator(23)],
            ),
        ),
        migrations.AlterField(
            model_name="notificationchannel",
            name="digest_roles",
            field=models.JSONField(
                blank=True,
                db_default=[],
                default=list,
                help_text="The human roles whose waiting items the digest contains. If empty: all.",
            ),
        ),
        migrations.AlterField(
            model_name="notificationchannel",
            name="kinds",
            field=models.JSONField(
                blank=True, default=list, help_text="The kinds of alerts to send. If empty: all."
            ),
        ),
        migrations.AlterField(
            model_name="notificationchannel",
            name="target_shown",
            field=models.CharField(
                editable=False,
                help_text="The part of the target that is displayed, so that people recognize it.",
                max_length=300,
            ),
        ),
        migrations.AlterField(
            model_name="notificationchannel",
            name="version",
            field=models.IntegerField(
                default=1, editable=False, help_text="Increases with every change; used as the ETag."
            ),
        ),
        migrations.AlterField(
            model_name="providerbatch",
            name="due_at",
            field=models.DateTimeField(
                db_default=django.db.models.functions.datetime.Now(),
                help_text="When it is processed next. A process first moves this time forward, as a lease.",
            ),
        ),
        migrations.AlterField(
            model_name="providerbatch",
            name="external_id",
            field=models.CharField(
                blank=True, default="", help_text="The provider's id of the batch.", max_length=100
            ),
        ),
        migrations.AlterField(
            model_name="providerbatch",
            name="not_ours",
            field=django.contrib.postgres.fields.ArrayField(
                base_field=models.CharField(max_length=100),
                default=list,
                help_text="Batches of the provider that were mistaken for this one.",
                size=None,
            ),
        ),
        migrations.AlterField(
            model_name="providerbatch",
            name="sendings",
            field=models.PositiveSmallIntegerField(
                default=0,
                help_text="How often it was sent. It is sent again if the provider's answer was lost and the provider does not have the batch.",
            ),
        ),
        migrations.AlterField(
            model_name="providerbatch",
            name="sent",
            field=models.PositiveIntegerField(default=0, help_text="Number of items that were sent last."),
        ),
        migrations.AlterField(
            model_name="providerbatch",
            name="sent_at",
            field=models.DateTimeField(help_text="When it was last sent.", null=True),
        ),
        migrations.AlterField(
            model_name="providerbatch",
            name="size",
            field=models.PositiveIntegerField(help_text="Number of its items."),
        ),
        migrations.AlterField(
            model_name="snoozeditem",
            name="version",
            field=models.IntegerField(help_text="The version of the activity when it was snoozed."),
        ),
        migrations.AlterField(
            model_name="subagent",
            name="continues_id",
            field=models.UUIDField(
                blank=True, help_text="The earlier subagent whose conversation it continues.", null=True
            ),
        ),
        migrations.AlterField(
            model_name="subagent",
            name="parent_mailbox",
            field=models.CharField(
                blank=True,
                default="",
                help_text="The key of the mailbox that is notified of its end.",
                max_length=200,
            ),
        ),
        migrations.AlterField(
            model_name="systemjob",
            name="budget_seconds",
            field=models.FloatField(help_text="How long one of its statements may take."),
        ),
        migrations.AlterField(
            model_name="systemjob",
            name="duration_seconds",
            field=models.FloatField(default=0.0, help_text="How long the last run took."),
        ),
        migrations.AlterField(
            model_name="systemjob",
            name="epoch",
            field=models.BigIntegerField(help_text="The epoch of the leader that ran it."),
        ),
        migrations.AlterField(
            model_name="systemjob",
            name="error",
            field=models.CharField(
                blank=True, default="", help_text="Why the last run failed.", max_length=200
            ),
        ),
        migrations.AlterField(
            model_name="systemjob",
            name="failures",
            field=models.IntegerField(
                default=0, help_text="Number of failures in a row. Waiting for a server is not a failure."
            ),
        ),
        migrations.AlterField(
            model_name="systemjob",
            name="finished_at",
            field=models.DateTimeField(
                help_text="When a run last ended, with or without success.", null=True
            ),
        ),
        migrations.AlterField(
            model_name="systemjob",
            name="lag_seconds",
            field=models.FloatField(default=0.0, help_text="How late the last run began."),
        ),
        migrations.AlterField(
            model_name="systemjob",
            name="owner",
            field=models.CharField(help_text="The module that runs it.", max_length=200),
        ),
        migrations.AlterField(
            model_name="systemjob",
            name="succeeded_at",
            field=models.DateTimeField(help_text="When a run last succeeded.", null=True),
        ),
        migrations.AlterField(
            model_name="toolcall",
            name="digest",
            field=models.CharField(
                help_text="A digest of the tool and the Idempotency-Key or, without a key, the body.",
                max_length=64,
            ),
        ),
        migrations.AlterField(
            model_name="vote",
            name="voter",
            field=models.CharField(
                help_text="The identity of the voter, so that nobody votes twice.", max_length=100
            ),
        ),
        migrations.AlterField(
            model_name="wake",
            name="due_at",
            field=models.DateTimeField(
                help_text="The wake is not offered before this time. The promoter clears it.", null=True
            ),
        ),
        migrations.AlterField(
            model_name="wake",
            name="fingerprint",
            field=models.CharField(
                default="", help_text="Pending wakes with equal fingerprints are merged.", max_length=64
            ),
        ),
        migrations.AlterField(
            model_name="wake",
            name="merged",
            field=models.PositiveIntegerField(
                default=0, help_text="The number of equal wakes that were merged into this one."
            ),
        ),
        migrations.AlterField(
            model_name="wake",
            name="provenance",
            field=models.JSONField(
                editable=False,
                help_text="The request that caused it, see tenants.request_context.",
                null=True,
            ),
        ),
        migrations.AlterField(
            model_name="workerprocess",
            name="active",
            field=models.PositiveIntegerField(
                db_default=0, default=0, help_text="Current runs at the last heartbeat."
            ),
        ),
        migrations.AlterField(
            model_name="workerprocess",
            name="beat_at",
            field=models.DateTimeField(
                db_default=django.db.models.functions.datetime.Now(),
                help_text="Only for people. Recovery never compares it with a clock.",
            ),
        ),
        migrations.AlterField(
            model_name="workerprocess",
            name="boot",
            field=models.CharField(
                help_text="Identifies the start of the machine and the process namespace, in which `pid` is valid.",
                max_length=120,
            ),
        ),
        migrations.AlterField(
            model_name="workerprocess",
            name="closed",
            field=models.JSONField(
                blank=True,
                db_default={},
                default=dict,
                help_text="Why it takes no new work, by role; `*` means all roles. Its seats are withdrawn from admission.",
            ),
        ),
        migrations.AlterField(
            model_name="workerprocess",
            name="load",
            field=models.JSONField(
                help_text="Load of the processor and the memory of its host at the last heartbeat, as shares.",
                null=True,
            ),
        ),
        migrations.AlterField(
            model_name="workerprocess",
            name="outage_at",
            field=models.DateTimeField(
                help_text="The end of the outage of PostgreSQL that it was affected by. The runs that it lost then do not count as stalls.",
                null=True,
            ),
        ),
        migrations.AlterField(
            model_name="workerprocess",
            name="pid_started",
            field=models.BigIntegerField(
                help_text="Start time of the process in the kernel, so that a reused pid is recognized."
            ),
        ),
        migrations.AlterField(
            model_name="workerprocess",
            name="taken",
            field=models.BigIntegerField(default=0, help_text="Runs claimed since its start."),
        ),
        migrations.AlterField(
            model_name="workerprocess",
            name="version",
            field=models.CharField(
                blank=True, db_default="", default="", help_text="The version of its program.", max_length=40
            ),
        ),
    ]
