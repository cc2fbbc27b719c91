"""What a person is told after they did something: on the next page that it was done, or on the same page why it was not."""

from __future__ import annotations

from django.contrib import messages
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils.http import urlencode

from console.inbox.items import Refused

from .internal_api import Reply
from .page import PageContext

NOT_SURE = "Say that you are sure: this cannot be undone."


def done(request: HttpRequest, visit: PageContext, address: str, words: str) -> HttpResponse:
    """On to that page, which says what was done."""
    messages.success(request, words)
    return HttpResponseRedirect(f"{address}?{urlencode({'tenant': visit.who.tenant})}")


def refusal_of(reply: Reply) -> Refused:
    """What a page says of an answer that refuses, beside what was typed."""
    faults = [f"{path}: {message}" if path else message for path, message in reply.faults.items()]
    return Refused(" ".join(faults) or reply.reason, status=reply.status)


def refuse_unsure(request: HttpRequest) -> Refused | None:
    """For what cannot be undone: the person has said so, or this is why nothing is done."""
    return None if request.POST.get("sure") == "yes" else Refused(NOT_SURE, status=400, field="sure")
