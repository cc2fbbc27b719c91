import time, pytest
from activities import deadletters
from activities.models import DeadLetter
from tenants.context import tenant_scope
from tests.burying import failed_many
from tests.integration.conftest import engine
def test_time(engine, tenant):
    t=time.time(); failed_many(tenant, 5000); print("bury", time.time()-t)
    t=time.time(); deadletters.handle_waiting(within=3); print("handled in 3s"); 
    with tenant_scope(tenant.pk):
        print(DeadLetter.objects.exclude(handled_at=None).count())
        t=time.time(); print(deadletters.replay(tenant.pk, DeadLetter.objects.for_tenant(tenant.pk), actor="x", per_second=10, dry_run=True), time.time()-t)
    for i in range(2):
        with tenant_scope(tenant.pk):
            t=time.time(); print(deadletters.replay(tenant.pk, DeadLetter.objects.for_tenant(tenant.pk), actor="x", per_second=10), time.time()-t)
    failed_many(tenant, 5000)
    with tenant_scope(tenant.pk):
            t=time.time(); print(deadletters.dismiss(tenant.pk, DeadLetter.objects.for_tenant(tenant.pk), actor="x", reason="r"), time.time()-t)
