"""Addresses that people know from elsewhere, and the pages of the admin that they lead to."""

from __future__ import annotations

from typing import Any

from django.urls import NoReverseMatch, reverse
from django.views.generic import RedirectView


class Signpost(RedirectView):
    """Leads to the first of these pages that there is. Who may see it is for the page to say."""

    leads_to: tuple[str, ...] = ()
    query_string = True

    def get_redirect_url(self, *args: Any, **kwargs: Any) -> str | None:
        for name in self.leads_to:
            try:
                self.url = reverse(name).replace("%", "%%")
            except NoReverseMatch:
                continue
            return super().get_redirect_url(*args, **kwargs)
        return None
