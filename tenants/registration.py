"""Creates tenants and finds them by slug: work of the platform, not of any tenant."""

from __future__ import annotations

from django.core.exceptions import ValidationError
from django.core.validators import validate_slug
from django.db import IntegrityError

from tenants.context import APP, system_scope, tenant_scope
from tenants.exceptions import TenantError
from tenants.identifiers import uuid7
from tenants.models import Tenant
from tenants.plain_names import LONGEST_NAME, error_of_name
from tenants.signals import tenant_changed


class TenantNotFound(TenantError):
    """No tenant has this slug."""

    code = "tenant_not_found"
    status = 404


def register(slug: str, name: str = "") -> Tenant:
    """Create a tenant. Raises `TenantError` for a slug or name that is invalid, or taken."""
    if reason := error_of_slug(slug):
        raise TenantError(f"{slug!r} is not a slug: {reason}.", code="invalid_slug", status=400)
    if len(slug) > 63:
        raise TenantError(
            f"The slug has {len(slug)} characters; 63 are allowed.", code="invalid_slug", status=400
        )
    if len(name) > LONGEST_NAME:
        raise TenantError(
            f"The name has {len(name)} characters; {LONGEST_NAME} are allowed.",
            code="invalid_name",
            status=400,
        )
    if problem := error_of_name(name):
        raise TenantError(f"The name {problem}.", code="invalid_name", status=400)
    tenant = Tenant(id=uuid7(), slug=slug, name=name.strip() or slug)
    try:
        with tenant_scope(tenant.pk):
            tenant.save(force_insert=True, using=APP)
            tenant_changed.send(sender=Tenant, tenant=tenant)
    except IntegrityError as error:
        # Row-level security hides the other tenant's row here: only the unique index detects it.
        raise TenantError(f"A tenant {slug!r} exists already.", code="slug_taken") from error
    return tenant


def error_of_slug(slug: str) -> str | None:
    """Say why the text cannot be a slug, or return None. A slug that begins with a hyphen would look like an option of a command."""
    try:
        validate_slug(slug)
    except ValidationError:
        return "use letters, digits, hyphens and underscores"
    return "begin with a letter or digit" if slug[0] in "-_" else None


def find(slug: str) -> Tenant:
    """Return the tenant with this slug, for commands of the platform. Raises `TenantNotFound`."""
    with system_scope():
        tenant = Tenant.objects.filter(slug=slug).first()
    if tenant is None:
        raise TenantNotFound(f"There is no tenant {slug!r}. Create it with: manage.py create_tenant {slug}")
    return tenant
