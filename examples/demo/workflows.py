"""An order in five steps, each an activity that runs somewhere, some day, exactly once as far as the order can tell."""

from __future__ import annotations

import random
import time
from collections.abc import Generator
from typing import Any

from durable_workflow import activity, workflow

TASK_QUEUE = "orders"


@workflow.defn(name="fulfil-order")
class FulfilOrder:
    def run(self, ctx: workflow.WorkflowContext, order: str) -> Generator[Any, Any, str]:
        price = yield ctx.schedule_activity("check-stock", [order])
        reservation = yield ctx.schedule_activity("reserve", [order])
        payment = yield ctx.schedule_activity("charge", [order, price])
        parcel = yield ctx.schedule_activity("pack", [reservation])
        tracking = yield ctx.schedule_activity("ship", [parcel])
        return f"{order}: paid {payment}, on its way as {tracking}"


@activity.defn(name="check-stock")
def check_stock(order: str) -> int:
    pretend_to_work()
    return 10 + len(order)


@activity.defn(name="reserve")
def reserve(order: str) -> str:
    pretend_to_work()
    return f"shelf-{order}"


@activity.defn(name="charge")
def charge(order: str, price: int) -> str:
    pretend_to_work()
    return f"{price} EUR"


@activity.defn(name="pack")
def pack(reservation: str) -> str:
    pretend_to_work()
    return reservation.replace("shelf", "parcel")


@activity.defn(name="ship")
def ship(parcel: str) -> str:
    pretend_to_work()
    return parcel.replace("parcel", "track")


def pretend_to_work() -> None:
    time.sleep(random.uniform(0.05, 0.2))


ACTIVITIES = [check_stock, reserve, charge, pack, ship]
