"""Row N11 of docs/protocol/worker-protocol.md 12.4: the check itself can fail, and what counting adds to a refusal."""

from __future__ import annotations

from typing import Any

import pytest

from durable.models import RefusedReport, Run, Task
from tests import factories as make
from tests.client import ApiClient
from tests.protocol.closings import CLOSINGS, closed_claim, leased_task
from tests.protocol.reports import REPORTS, send_report
from tests.protocol.waiting import wait_until
from tests.snapshot import nothing_recorded

REFUSED_REPORTS = frozenset({RefusedReport._meta.db_table})


@pytest.mark.usefixtures("populated")
@pytest.mark.parametrize("table", [Run, Task, RefusedReport])
def test_n11_notices_a_single_byte(table: Any) -> None:
    column = {Run: "business_key", Task: "poll_request_id", RefusedReport: "reason"}[table]
    row = table.objects.first()

    with pytest.raises(AssertionError, match=table._meta.db_table), nothing_recorded():
        table.objects.filter(pk=row.pk).update(**{column: "x"})


@pytest.mark.usefixtures("populated")
def test_n11_notices_a_row_that_came_and_one_that_went() -> None:
    with pytest.raises(AssertionError, match="durable_namespace"), nothing_recorded():
        make_namespace("another")
    with pytest.raises(AssertionError, match="durable_namespace"), nothing_recorded():
        make_namespace("another", delete=True)


def make_namespace(name: str, *, delete: bool = False) -> None:
    from durable.models import Namespace

    if delete:
        Namespace.objects.filter(name=name).delete()
    else:
        Namespace.objects.create(name=name)


@pytest.mark.parametrize("report", REPORTS)
@pytest.mark.parametrize("how", CLOSINGS)
def test_n11_counts_a_refused_report_and_records_nothing_else(
    populated: ApiClient, override_durable: Any, how: str, report: str
) -> None:
    lease = closed_claim(populated, how)
    RefusedReport.objects.all().delete()
    override_durable(COUNT_REFUSED_REPORTS=True)

    with nothing_recorded(without=REFUSED_REPORTS):
        response = send_report(populated, lease, report)
        wait_until(RefusedReport.objects.exists)

    assert response.body["recorded"] is False
    counted = RefusedReport.objects.get()
    assert (counted.task_id, counted.run_id, counted.reason) == (lease.task_id, lease.body["run_id"], "run_closed")


@pytest.mark.parametrize("report", REPORTS)
def test_n11_counts_nothing_when_counting_is_off(populated: ApiClient, report: str) -> None:
    lease = leased_task()
    make.report_waiting(lease)

    with nothing_recorded():
        assert send_report(populated, lease, report).status == 409
