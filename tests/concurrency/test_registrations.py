"""Registrations of one worker id at the same time: every request is answered, one incarnation is the active one."""

from __future__ import annotations

import pytest

from durable.models import WorkerIncarnation, WorkerRegistration
from durable.operations import register_worker as module
from durable.states import IncarnationStatus
from tests import factories as make
from tests.concurrency.tools import all_at_once, gate_after, in_thread, wait_until_blocked

pytestmark = pytest.mark.usefixtures("database")


def test_second_registration_of_an_id_replaces_the_first_that_was_uncommitted() -> None:
    with gate_after(module, "_insert_or_replace") as gate:
        first = in_thread(make.register)
        gate.wait_until_reached()
        second = in_thread(make.register)
        wait_until_blocked()
        gate.open()
        tokens = [first.result(20).registration_token, second.result(20).registration_token]

    assert WorkerRegistration.objects.get().registration_token == tokens[1]
    statuses = dict(WorkerIncarnation.objects.values_list("registration_token", "status"))
    assert statuses == dict(zip(tokens, (IncarnationStatus.SUPERSEDED, IncarnationStatus.ACTIVE), strict=True))


def test_registrations_of_an_id_at_once_leave_one_active_incarnation() -> None:
    outcomes = all_at_once([make.register] * 8)

    tokens = {outcome.registration_token for outcome in outcomes}
    current = WorkerRegistration.objects.get().registration_token
    active = WorkerIncarnation.objects.filter(status=IncarnationStatus.ACTIVE)
    assert [incarnation.registration_token for incarnation in active] == [current]
    assert set(WorkerIncarnation.objects.values_list("registration_token", flat=True)) == tokens
