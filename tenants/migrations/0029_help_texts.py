from decimal import Decimal

import django.contrib.postgres.fields
import django.core.validators
import django.db.models.deletion
from django.conf import settings
from django.db import migrations, models

import tenants.models.base


class Migration(migrations.Migration):
    dependencies = [
        ("tenants", "0028_note_of_one_activity"),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.AlterField(
            model_name="apitoken",
            name="platform",
            field=models.BooleanField(
                default=False,
                help_text="Also allows changes to the registry of agents that all tenants share.",
            ),
        ),
        migrations.AlterField(
            model_name="apitoken",
            name="prefix",
            field=models.CharField(
                editable=False, help_text="The first characters, to recognize the token.", max_length=16
            ),
        ),
        migrations.AlterField(
            model_name="apitoken",
            name="scopes",
            field=models.JSONField(
                blank=True, default=list, help_text="If empty, the token has all permissions of its role."
            ),
        ),
        migrations.AlterField(
            model_name="apitoken",
            name="user",
            field=models.ForeignKey(
                blank=True,
                db_constraint=False,
                db_index=False,
                editable=False,
                help_text="The person behind the token. Empty: none, so that the token has no vote.",
                null=True,
                on_delete=django.db.models.deletion.DO_NOTHING,
                related_name="+",
                to=settings.AUTH_USER_MODEL,
            ),
        ),
        migrations.AlterField(
            model_name="auditentry",
            name="chain",
            field=models.UUIDField(help_text="The tenant's id; zeros for the platform."),
        ),
        migrations.AlterField(
            model_name="auditentry",
            name="changes",
            field=models.JSONField(
                default=dict, help_text="The values before and after, by field, without secrets and texts."
            ),
        ),
        migrations.AlterField(
            model_name="breakglass",
            name="opened_for",
            field=models.UUIDField(help_text="The tenant's id. Empty for all tenants.", null=True),
        ),
        migrations.AlterField(
            model_name="budget",
            name="activity_id",
            field=models.UUIDField(blank=True, help_text="Empty for all activities.", null=True),
        ),
        migrations.AlterField(
            model_name="budget",
            name="agent_role",
            field=models.CharField(blank=True, help_text="Empty for all roles.", max_length=63, null=True),
        ),
        migrations.AlterField(
            model_name="budget",
            name="deliverable_id",
            field=models.UUIDField(blank=True, help_text="Empty for all deliverables.", null=True),
        ),
        migrations.AlterField(
            model_name="budget",
            name="estimate",
            field=models.DecimalField(
                blank=True,
                decimal_places=12,
                help_text="The amount that is reserved for each run when it starts.",
                max_digits=36,
                null=True,
                validators=[django.core.validators.MinValueValidator(0)],
            ),
        ),
        migrations.AlterField(
            model_name="budget",
            name="overshoot",
            field=models.DecimalField(
                decimal_places=12,
                default=0,
                editable=False,
                help_text="By how much the cap was exceeded in this period.",
                max_digits=36,
            ),
        ),
        migrations.AlterField(
            model_name="budget",
            name="recount_at",
            field=models.DateTimeField(
                editable=False, help_text="When the amount is calculated from the ledger again.", null=True
            ),
        ),
        migrations.AlterField(
            model_name="budget",
            name="version",
            field=models.IntegerField(
                default=1, editable=False, help_text="Increases with every change; used as the ETag."
            ),
        ),
        migrations.AlterField(
            model_name="budget",
            name="waiting_since",
            field=models.DateTimeField(
                editable=False, help_text="Since when work has been waiting for this budget.", null=True
            ),
        ),
        migrations.AlterField(
            model_name="budget",
            name="wanted",
            field=models.DecimalField(
                decimal_places=12,
                editable=False,
                help_text="The smallest amount that the waiting work needs.",
                max_digits=36,
                null=True,
            ),
        ),
        migrations.AlterField(
            model_name="budget",
            name="warning_share",
            field=models.DecimalField(
                decimal_places=3,
                default=Decimal("0.8"),
                help_text="People are notified once when this share of the cap is spent.",
                max_digits=4,
                validators=[
                    django.core.validators.MinValueValidator(0),
                    django.core.validators.MaxValueValidator(1),
                ],
            ),
        ),
        migrations.AlterField(
            model_name="budgetwait",
            name="amount",
            field=models.DecimalField(
                decimal_places=12, help_text="The amount that would be reserved for its run.", max_digits=36
            ),
        ),
        migrations.AlterField(
            model_name="channel",
            name="details",
            field=models.JSONField(
                blank=True, default=dict, help_text="Data for agents, such as account numbers. No secrets."
            ),
        ),
        migrations.AlterField(
            model_name="channel",
            name="expires_at",
            field=models.DateTimeField(
                blank=True, help_text="When it expires. Empty if that is not known.", null=True
            ),
        ),
        migrations.AlterField(
            model_name="channel",
            name="kind",
            field=models.CharField(help_text="For example google-ads.", max_length=63),
        ),
        migrations.AlterField(
            model_name="channel",
            name="version",
            field=models.IntegerField(
                default=1, editable=False, help_text="Increases with every change; used as the ETag."
            ),
        ),
        migrations.AlterField(
            model_name="configurationchange",
            name="concerns",
            field=models.UUIDField(
                help_text="The tenant whose configuration has changed. Empty for all tenants.", null=True
            ),
        ),
        migrations.AlterField(
            model_name="configurationchange",
            name="transaction",
            field=models.BigIntegerField(help_text="The id of the transaction in PostgreSQL."),
        ),
        migrations.AlterField(
            model_name="departedtenant",
            name="counts",
            field=models.JSONField(
                default=dict, help_text="Number of deleted rows by table, and what else was deleted."
            ),
        ),
        migrations.AlterField(
            model_name="departedtenant",
            name="erased_at",
            field=models.DateTimeField(help_text="Empty until the deletion has ended.", null=True),
        ),
        migrations.AlterField(
            model_name="event",
            name="data",
            field=models.JSONField(
                default=dict, help_text="Ids and statuses. It never contains texts of agents or people."
            ),
        ),
        migrations.AlterField(
            model_name="event",
            name="id",
            field=models.BigIntegerField(
                help_text="In the order of numbering. Readers only see the number.",
                primary_key=True,
                serialize=False,
            ),
        ),
        migrations.AlterField(
            model_name="eventlog",
            name="listened_until",
            field=models.DateTimeField(
                help_text="Until then, a client follows the log and has to be notified of changes.", null=True
            ),
        ),
        migrations.AlterField(
            model_name="forgottenoutput",
            name="id",
            field=models.UUIDField(
                help_text="The id of the output, which is also the document's `_id`.",
                primary_key=True,
                serialize=False,
            ),
        ),
        migrations.AlterField(
            model_name="freshevent",
            name="activities",
            field=django.contrib.postgres.fields.ArrayField(
                base_field=models.UUIDField(),
                help_text="The activities that have new entries in their histories.",
                null=True,
                size=None,
            ),
        ),
        migrations.AlterField(
            model_name="freshevent",
            name="kind",
            field=models.CharField(
                help_text="If empty, the histories determine the kinds.", max_length=32, null=True
            ),
        ),
        migrations.AlterField(
            model_name="freshevent",
            name="seqs",
            field=django.contrib.postgres.fields.ArrayField(
                base_field=models.IntegerField(),
                help_text="The first new position in each of these histories, then the last in each.",
                null=True,
                size=None,
            ),
        ),
        migrations.AlterField(
            model_name="idempotentrequest",
            name="digest",
            field=models.CharField(help_text="A digest of the caller, the path and the key.", max_length=64),
        ),
        migrations.AlterField(
            model_name="idempotentrequest",
            name="request_digest",
            field=models.CharField(
                help_text="A digest of the request. A different request cannot use the same key.",
                max_length=64,
            ),
        ),
        migrations.AlterField(
            model_name="membership",
            name="slack_user",
            field=models.CharField(
                blank=True,
                db_default="",
                default="",
                editable=False,
                help_text="The Slack user whose buttons decide in this person's name, as <workspace id>/<user id>. Empty: none.",
                max_length=64,
            ),
        ),
        migrations.AlterField(
            model_name="passkey",
            name="answered",
            field=models.BinaryField(
                help_text="The last challenge that it has answered. It cannot answer the same challenge twice."
            ),
        ),
        migrations.AlterField(
            model_name="passkey",
            name="credential",
            field=models.BinaryField(
                help_text="The id of the credential in the browser.", max_length=1023, unique=True
            ),
        ),
        migrations.AlterField(
            model_name="passkey",
            name="name",
            field=models.CharField(
                help_text="The name by which its owner recognizes the device.", max_length=60
            ),
        ),
        migrations.AlterField(
            model_name="passkey",
            name="uses",
            field=models.BigIntegerField(
                editable=False,
                help_text="The device's counter of uses. A lower counter reveals a copy. 0 if the device does not count.",
            ),
        ),
        migrations.AlterField(
            model_name="pause",
            name="name",
            field=models.CharField(help_text="The name that people see.", max_length=200),
        ),
        migrations.AlterField(
            model_name="plan",
            name="max_concurrency",
            field=models.PositiveIntegerField(
                blank=True,
                help_text="How many activities of a tenant may run at once, over all roles. Empty: no limit.",
                null=True,
            ),
        ),
        migrations.AlterField(
            model_name="plan",
            name="max_concurrency_per_group",
            field=models.PositiveIntegerField(
                blank=True,
                help_text="How many activities with one group key and group_scope tenant may run at once. Empty: 1.",
                null=True,
                validators=[django.core.validators.MinValueValidator(1)],
            ),
        ),
        migrations.AlterField(
            model_name="plan",
            name="roles",
            field=models.JSONField(
                blank=True,
                default=dict,
                help_text='How many activities of a role a tenant may run at once, such as {"writer": 3}. Other roles: as the registry says.',
                validators=[tenants.models.base.validate_role_caps],
            ),
        ),
        migrations.AlterField(
            model_name="retentionpass",
            name="ended_at",
            field=models.DateTimeField(help_text="Empty while the pass runs.", null=True),
        ),
        migrations.AlterField(
            model_name="retentionpass",
            name="reached",
            field=models.UUIDField(help_text="The last tenant that this pass has processed.", null=True),
        ),
        migrations.AlterField(
            model_name="retentionpass",
            name="rows",
            field=models.BigIntegerField(default=0, help_text="Number of rows deleted by the last pass."),
        ),
        migrations.AlterField(
            model_name="retentionpass",
            name="total",
            field=models.BigIntegerField(default=0, help_text="Number of rows deleted by all passes."),
        ),
        migrations.AlterField(
            model_name="retentionpolicy",
            name="days",
            field=models.PositiveIntegerField(
                blank=True,
                help_text="If empty, rows of this kind are never deleted.",
                null=True,
                validators=[
                    django.core.validators.MinValueValidator(1),
                    django.core.validators.MaxValueValidator(36500),
                ],
            ),
        ),
        migrations.AlterField(
            model_name="retentionpolicy",
            name="version",
            field=models.IntegerField(default=1, editable=False, help_text="Increases with every change."),
        ),
        migrations.AlterField(
            model_name="retentiontally",
            name="last_deleted",
            field=models.IntegerField(
                default=0, help_text="Number of rows deleted in the last pass that deleted any."
            ),
        ),
        migrations.AlterField(
            model_name="savedview",
            name="page",
            field=models.CharField(help_text="The name of the page's URL.", max_length=32),
        ),
        migrations.AlterField(
            model_name="savedview",
            name="query",
            field=models.CharField(blank=True, help_text="The query string.", max_length=1000),
        ),
        migrations.AlterField(
            model_name="secondfactor",
            name="confirmed_at",
            field=models.DateTimeField(
                editable=False,
                help_text="Since when codes are required. Empty until the first code was entered correctly.",
                null=True,
            ),
        ),
        migrations.AlterField(
            model_name="secondfactor",
            name="last_step",
            field=models.BigIntegerField(
                default=-1,
                editable=False,
                help_text="The newest code that was accepted. No code is accepted twice.",
            ),
        ),
        migrations.AlterField(
            model_name="secondfactor",
            name="secret_sealed",
            field=models.TextField(
                editable=False, help_text="The encrypted secret of the codes, and the unused recovery codes."
            ),
        ),
        migrations.AlterField(
            model_name="tenant",
            name="bounds",
            field=models.JSONField(
                blank=True,
                db_default=models.Value({}, models.JSONField()),
                default=dict,
                help_text='How many objects of a kind it may own, such as {"schedules": 50}. For other kinds, the limit of the platform applies.',
            ),
        ),
        migrations.AlterField(
            model_name="tenant",
            name="max_concurrency",
            field=models.PositiveIntegerField(
                blank=True,
                help_text="How many activities may run at once, over all roles. Empty: its plan decides; without a plan, no limit.",
                null=True,
            ),
        ),
        migrations.AlterField(
            model_name="tenant",
            name="max_concurrency_per_group",
            field=models.PositiveIntegerField(
                blank=True,
                help_text="How many activities with one group key and group_scope tenant may run at once. Empty: its plan decides, otherwise 1.",
                null=True,
                validators=[django.core.validators.MinValueValidator(1)],
            ),
        ),
        migrations.AlterField(
            model_name="tenant",
            name="paused",
            field=models.BooleanField(
                default=False,
                help_text="Whether all its work is paused: no new work starts, and current runs end normally.",
            ),
        ),
        migrations.AlterField(
            model_name="usageentry",
            name="day",
            field=models.DateField(help_text="The day on which it was reported, in UTC."),
        ),
        migrations.AlterField(
            model_name="usageentry",
            name="unpriced",
            field=models.BooleanField(
                default=False,
                help_text="Whether the cost of these tokens is unknown: none was reported, and the price of the model is not known.",
            ),
        ),
        migrations.AlterField(
            model_name="usagetotal",
            name="month",
            field=models.DateField(help_text="The first day of the month."),
        ),
        migrations.AlterField(
            model_name="webhookdelivery",
            name="attempts",
            field=models.IntegerField(
                db_default=0, default=0, help_text="Attempts since it was created or redelivered."
            ),
        ),
        migrations.AlterField(
            model_name="webhookdelivery",
            name="event_number",
            field=models.BigIntegerField(help_text="Empty for a test, which is not an event.", null=True),
        ),
        migrations.AlterField(
            model_name="webhookdelivery",
            name="fence",
            field=models.IntegerField(
                db_default=0,
                default=0,
                help_text="Increases with every claim: only the latest claim may record a result.",
            ),
        ),
        migrations.AlterField(
            model_name="webhookendpoint",
            name="failing_since",
            field=models.DateTimeField(
                editable=False, help_text="The time of the first failure since the last success.", null=True
            ),
        ),
        migrations.AlterField(
            model_name="webhookendpoint",
            name="failures",
            field=models.IntegerField(
                default=0, editable=False, help_text="Number of failed attempts since the last success."
            ),
        ),
        migrations.AlterField(
            model_name="webhookendpoint",
            name="kinds",
            field=models.JSONField(
                blank=True, default=list, help_text="The kinds of events to send. If empty: all."
            ),
        ),
        migrations.AlterField(
            model_name="webhookendpoint",
            name="paused_until",
            field=models.DateTimeField(
                editable=False,
                help_text="Nothing is sent before this time, because the last attempts have failed.",
                null=True,
            ),
        ),
        migrations.AlterField(
            model_name="webhookendpoint",
            name="previous_until",
            field=models.DateTimeField(
                editable=False,
                help_text="Until when messages are also signed with the previous secret.",
                null=True,
            ),
        ),
        migrations.AlterField(
            model_name="webhookendpoint",
            name="secret_sealed",
            field=models.TextField(
                editable=False, help_text="The encrypted secret for signatures, and the previous one."
            ),
        ),
        migrations.AlterField(
            model_name="webhookendpoint",
            name="version",
            field=models.IntegerField(
                default=1, editable=False, help_text="Increases with every change; used as the ETag."
            ),
        ),
    ]
