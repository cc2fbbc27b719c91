"""Where a person takes answers back."""

from __future__ import annotations

from uuid import UUID

from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse

from console.held import holding
from console.inbox_view import View
from console.pages import ACTING, Desk, page

TOO_LATE = "That came too late: it has taken effect."


@page("inbox", ACTING)
def undo(request: HttpRequest, desk: Desk) -> HttpResponse:
    """Take back the answers named by `held`, or put away what was said about them. One of them leads to its item."""
    try:
        ids = [UUID(given) for given in request.POST.getlist("held")]
        item = UUID(given) if (given := request.POST.get("item", "")) else None
    except ValueError as error:
        raise Http404 from error
    taken = holding.take_back(desk.who, ids)
    read = request.POST.get("deed") == "read"
    if not read:
        if taken:
            messages.success(
                request, "Taken back. Nothing was done." if taken == 1 else f"{taken} answers taken back."
            )
        if taken < len(ids):
            messages.warning(request, TOO_LATE)
    address = View.read(desk.who.tenant, request.GET).address
    if item and taken and not read:
        return HttpResponseRedirect(f"{reverse('console:inbox_item', args=[item])}?{address}#item")
    return HttpResponseRedirect(f"{reverse('console:inbox')}?{address}#content")
