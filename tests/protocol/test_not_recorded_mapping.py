"""The not-recorded mapping by itself, and what its tests would say of a server without it (worker-protocol.md 12.4)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest

from durable import receipts
from durable.models import Task
from durable.operations import checkpoint_workflow_task, complete_workflow_task
from durable.receipts import NOT_RECORDED_REASONS, not_recorded
from durable.refusals import Reason, Refusal
from tests import factories as make
from tests.client import ApiClient, undocumented
from tests.protocol import test_not_recorded_receipts as rows
from tests.protocol.closings import CLOSINGS, leased_task
from tests.protocol.reports import REPORTS, send_report

TASK = Task(id="the-task", run_id="the-run", status="completed")
WRONG = {"task_id": "another", "workflow_task_attempt": 9, "run_id": "another", "recorded": True}
Mapping = Callable[[Refusal, Task, int], Refusal]


def check_n8(mapping: Mapping) -> None:
    for reason in NOT_RECORDED_REASONS:
        mapped = mapping(Refusal(reason, "No.", **WRONG), TASK, 2)

        assert mapped.fields == {
            "task_id": "the-task",
            "workflow_task_attempt": 2,
            "run_id": "the-run",
            "recorded": False,
            "task_status": "completed",
        }


def with_set_default(refusal: Refusal, task: Task, request_attempt: int) -> Refusal:
    """The wrong mapping: identity only where the refusal has none."""
    identity = {"task_id": task.id, "workflow_task_attempt": request_attempt, "run_id": task.run_id, "recorded": False}
    return Refusal(refusal.reason, refusal.message, **{"task_status": task.status, **identity, **refusal.fields})


def test_n8_overwrites_a_wrong_identity() -> None:
    check_n8(not_recorded)


def test_n8_turns_an_attempt_into_a_number() -> None:
    mapped = not_recorded(Refusal(Reason.RUN_CLOSED, "No."), TASK, "3")  # type: ignore[arg-type]

    assert mapped.fields["workflow_task_attempt"] == 3


def test_n10_keeps_a_task_status_that_the_refusal_has() -> None:
    mapped = not_recorded(Refusal(Reason.RUN_CLOSED, "No.", task_status="leased"), TASK, 1)

    assert mapped.fields["task_status"] == "leased"


def test_n10_fills_in_the_task_status_from_the_row() -> None:
    mapped = not_recorded(Refusal(Reason.TASK_NOT_LEASED, "No."), TASK, 1)

    assert mapped.fields["task_status"] == "completed"


def test_keeps_reason_message_and_other_fields() -> None:
    mapped = not_recorded(Refusal(Reason.RUN_CLOSED, "Closed.", stop_reason="run_failed"), TASK, 1)

    assert (mapped.reason, mapped.message, mapped.fields["stop_reason"]) == (Reason.RUN_CLOSED, "Closed.", "run_failed")


@pytest.mark.parametrize("reason", [reason for reason in Reason if reason not in NOT_RECORDED_REASONS])
def test_n16_passes_every_other_refusal_through_unchanged(reason: Reason) -> None:
    refusal = Refusal(reason, "No.", **WRONG)

    assert not_recorded(refusal, TASK, 1) is refusal
    assert refusal.fields == WRONG


@pytest.mark.parametrize("report", REPORTS)
@pytest.mark.parametrize("reason", ["stale_worker_registration", "cancellation_deadline_expired"])
def test_n7_leaves_reasons_that_no_route_raises_yet_without_a_receipt(
    populated: ApiClient, reason: str, report: str
) -> None:
    lease = leased_task()
    injected = Refusal(reason, "Injected.", task_id=lease.task_id, workflow_task_attempt=1)  # type: ignore[arg-type]

    with undocumented(), mock.patch.object(complete_workflow_task, "check_workflow_task", return_value=injected):
        response = rows.refused(populated, lease, report)

    assert response.plain == {
        "error": "Injected.",
        "reason": reason,
        "task_id": lease.task_id,
        "workflow_task_attempt": 1,
    }


# -- N15: counterfactuals ----------------------------------------------------------------------------------------------
# Run once by hand against a server without the mapping: every case of N1 to N4 failed (106 of 138), every case of N5
# passed; and against one without the mapping of the checkpoint's step: the ten cases of N4 failed, and nothing else.
# The tests below do the same with one case of each row, so that it stays true.


@pytest.fixture
def unmapped(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server whose reports are refused without a receipt."""
    monkeypatch.setattr(complete_workflow_task, "not_recorded", lambda refusal, task, attempt: refusal)


@pytest.mark.usefixtures("unmapped")
@pytest.mark.parametrize("report", REPORTS)
@pytest.mark.parametrize(
    "row",
    [
        lambda api, report: rows.test_n1_proves_that_nothing_was_recorded_after_the_run_closed(api, "failed", report),
        rows.test_n2_proves_it_for_a_waiting_task_on_an_open_run,
        lambda api, report: rows.test_n3_proves_it_for_a_leased_task_on_a_closed_run(api, "failed", report),
    ],
    ids=["n1", "n2", "n3"],
)
def test_n15_rows_1_to_3_fail_without_the_mapping(
    populated: ApiClient, row: Callable[[ApiClient, str], None], report: str
) -> None:
    with pytest.raises(AssertionError):
        row(populated, report)


@pytest.mark.usefixtures("unmapped")
@pytest.mark.parametrize(
    "row",
    [
        rows.test_n5_leaves_an_attempt_mismatch_without_a_receipt,
        rows.test_n5_leaves_an_owner_mismatch_without_a_receipt,
        rows.test_n5_leaves_an_expired_lease_without_a_receipt,
    ],
)
def test_n15_row_5_passes_without_the_mapping(populated: ApiClient, row: Callable[[ApiClient, str], None]) -> None:
    row(populated, "complete")


@pytest.fixture
def unmapped_step(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """A server whose checkpoint step is refused without a receipt; its guard is not."""
    monkeypatch.setattr(checkpoint_workflow_task, "not_recorded", lambda refusal, task, attempt: refusal)
    return monkeypatch


@pytest.mark.parametrize("says", ["answer", "error"])
@pytest.mark.parametrize("how", CLOSINGS)
def test_n15_row_4_fails_without_the_mapping_of_the_checkpoints_step(
    populated: ApiClient, unmapped_step: pytest.MonkeyPatch, how: str, says: str
) -> None:
    """Counterfactual: run once by hand with the mapping taken out of the code, with the same outcome."""
    with undocumented(), pytest.raises(AssertionError, match="recorded"):
        rows.test_n4_proves_it_when_the_checkpoint_itself_finds_the_run_closed(populated, unmapped_step, how, says)


@pytest.mark.usefixtures("unmapped_step")
@pytest.mark.parametrize(
    "row",
    [
        lambda api, report: rows.test_n1_proves_that_nothing_was_recorded_after_the_run_closed(api, "failed", report),
        rows.test_n5_leaves_an_owner_mismatch_without_a_receipt,
    ],
    ids=["n1", "n5"],
)
def test_n15_other_rows_pass_without_the_mapping_of_the_checkpoints_step(
    populated: ApiClient, row: Callable[[ApiClient, str], None]
) -> None:
    row(populated, "checkpoint")


@pytest.mark.parametrize("wrong", [with_set_default, lambda refusal, task, attempt: refusal])
def test_n15_row_8_fails_with_another_mapping(wrong: Mapping) -> None:
    with pytest.raises(AssertionError):
        check_n8(wrong)


def test_n12_says_it_in_the_worker_envelope(populated: ApiClient, monkeypatch: pytest.MonkeyPatch) -> None:
    lease = leased_task()
    make.report_waiting(lease)

    response = send_report(populated, lease, "complete")

    assert response.headers["x-durable-workflow-protocol-version"] == "1.20"
    assert response.body["protocol_version"] == "1.20"
    assert response.body["server_capabilities"]["supported_workflow_task_commands"][0] == "complete_workflow"


def test_has_no_third_reason() -> None:
    expected: set[Any] = {Reason.TASK_NOT_LEASED, Reason.RUN_CLOSED}

    assert expected == receipts.NOT_RECORDED_REASONS
