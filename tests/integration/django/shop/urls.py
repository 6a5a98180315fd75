"""Views that write into each alias, and fail in one way or another."""

from __future__ import annotations

from typing import Any

from django.db import connections, transaction
from django.http import HttpResponse
from django.urls import path
from shop.models import Order

import txpool
from txpool import failpoints


def place(request: Any, number: int) -> Any:
    for alias in request.GET.getlist("only") or connections:
        Order.objects.using(alias).create(number=number)
    for each in request.GET.getlist("arm"):
        failpoints.arm(*each.split(":"))
    if "fail" in request.GET:
        raise ZeroDivisionError
    status = int(request.GET.get("status", 200))
    if status >= 400:
        for alias in connections:
            transaction.set_rollback(True, using=alias)
    return HttpResponse(f"placed in {txpool.current().gtrid}", status=status)


async def asynchronous(request: Any) -> Any:
    return HttpResponse("done")


urlpatterns = [path("place/<int:number>", place), path("asynchronous", asynchronous)]
