"""Outputs are stored unchanged, whatever their keys mean to MongoDB."""

from __future__ import annotations

from uuid import uuid4

import pytest
from pymongo.collection import Collection
from pymongo.errors import NetworkTimeout

from activities import outputs
from activities.models import OutputSpool
from activities.submission import NewActivity, submit
from tenants.context import tenant_scope
from tenants.models import Tenant


def test_keys_that_look_like_operators_of_mongodb_are_stored_unchanged(tenant: Tenant) -> None:
    data = {"$gt": "", "a.b": {"$where": "1"}, "": {"$ref": "x"}}
    with tenant_scope(tenant.pk):
        (activity,) = submit([NewActivity(name="x", agent_role="qa")], actor="test")
        row = OutputSpool.objects.create(tenant=tenant, id=uuid4(), activity_id=activity.id, data=data)
    outputs.copy_waiting()

    stored = outputs.read(tenant.pk, row.pk)

    assert stored is not None
    assert stored.data == data
    (document,) = outputs.collection().find({"_id": str(row.pk)})
    assert isinstance(document["data"], str)
    outputs.collection().delete_one({"_id": str(row.pk)})


@pytest.mark.parametrize("number", [6e23, -1e300])
def test_a_wide_number_is_read_as_it_was_written_and_does_not_stop_the_copies(
    tenant: Tenant, number: float
) -> None:
    data = {"n": number, "rows": [[number, 2**63 - 1]]}
    with tenant_scope(tenant.pk):
        (activity,) = submit([NewActivity(name="x", agent_role="qa")], actor="test")
        row = OutputSpool.objects.create(tenant=tenant, id=uuid4(), activity_id=activity.id, data=data)
    spooled = outputs.read(tenant.pk, row.pk)

    assert outputs.copy_waiting() == 1

    copied = outputs.read(tenant.pk, row.pk)
    assert [stored.data for stored in (spooled, copied) if stored is not None] == [data, data]
    outputs.collection().delete_one({"_id": str(row.pk)})


def test_the_first_copy_creates_the_indexes_for_exports_and_deletions_of_a_tenant(tenant: Tenant) -> None:
    with tenant_scope(tenant.pk):
        (activity,) = submit([NewActivity(name="x", agent_role="qa")], actor="test")
        row = OutputSpool.objects.create(tenant=tenant, id=uuid4(), activity_id=activity.id, data={})

    outputs.copy_waiting()

    for name in (outputs.OUTPUTS, outputs.RUN_LOGS):
        indexes = outputs.collection().database[name].index_information().values()
        assert [("tenant_id", 1)] in [index["key"] for index in indexes], name
    outputs.collection().delete_one({"_id": str(row.pk)})


def test_an_output_is_copied_even_if_the_index_cannot_be_created(
    tenant: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    with tenant_scope(tenant.pk):
        (activity,) = submit([NewActivity(name="x", agent_role="qa")], actor="test")
        row = OutputSpool.objects.create(tenant=tenant, id=uuid4(), activity_id=activity.id, data={})
    outputs._index_by_tenant.cache_clear()

    def time_out(*arguments: object, **options: object) -> None:
        raise NetworkTimeout("timed out")

    with monkeypatch.context() as patch:
        patch.setattr(Collection, "create_index", time_out)
        assert outputs.copy_waiting() == 1

    outputs._index_by_tenant.cache_clear()
    outputs.collection().delete_one({"_id": str(row.pk)})
