"""List groups: labels, repeats, and the base that a worker predicted wrongly (docs/protocol/history.md 6.1 to 6.3)."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from durable.models import ActivityExecution, HistoryEvent, Run, Task
from tests import factories as make
from tests.client import ApiClient
from tests.invariants import check_invariants
from tests.protocol.closings import leased_task, lose
from tests.protocol.reports import send
from tests.protocol.test_commands import accepted, refused
from tests.snapshot import nothing_recorded

FIELDS = (
    "parallel_group_id", "parallel_group_kind", "parallel_group_base_sequence", "parallel_group_size",
    "parallel_group_index",
)  # fmt: skip


def entry(prefix: str, kind: str, base: int, size: int, index: int) -> dict[str, Any]:
    return dict(zip(FIELDS, (f"{prefix}:{base}:{size}", kind, base, size, index), strict=True))


def leaf(*path: dict[str, Any]) -> dict[str, Any]:
    """A command that stands in these groups, outermost first."""
    return make.schedule(**path[-1], parallel_group_path=list(path))


def nested() -> list[dict[str, Any]]:
    """`[activity, [activity, activity]]`."""
    outer = [entry("parallel-calls", "mixed", 1, 3, index) for index in range(3)]
    inner = [entry("parallel-activities", "activity", 2, 2, index) for index in range(2)]
    return [leaf(outer[0]), leaf(outer[1], inner[0]), leaf(outer[2], inner[1])]


def broken(change: Any) -> list[dict[str, Any]]:
    """Three leaves, of which the middle one is changed."""
    commands = copy.deepcopy(make.schedule_list(3))
    change(commands[1])
    return commands


# -- labels ------------------------------------------------------------------------------------------------------------


def test_repeats_the_label_on_every_event_of_a_step(api: ApiClient) -> None:
    accepted(api, *nested())
    for number in range(3):
        lease = make.lease_activity()
        make.fail_step(lease) if number == 1 else make.complete_step(lease)

    for step, command in enumerate(nested(), 1):
        events = [event for event in HistoryEvent.objects.order_by("sequence") if event.payload.get("sequence") == step]
        assert len(events) == 3
        for event in events:
            assert {name: event.payload[name] for name in (*FIELDS, "parallel_group_path")} == {
                name: command[name] for name in (*FIELDS, "parallel_group_path")
            }


@pytest.mark.parametrize(
    "change",
    [
        lambda leaf: leaf["parallel_group_path"][0].update(parallel_group_id="parallel-activities:1:4"),
        lambda leaf: leaf["parallel_group_path"][0].update(parallel_group_kind="child"),
        lambda leaf: leaf["parallel_group_path"][0].update(parallel_group_kind=None),
        lambda leaf: leaf["parallel_group_path"][0].update(parallel_group_index=3),
        lambda leaf: leaf["parallel_group_path"][0].update(parallel_group_index=-1),
        lambda leaf: leaf["parallel_group_path"][0].update(parallel_group_size="x"),
        lambda leaf: leaf["parallel_group_path"][0].update(parallel_group_base_sequence=0),
        lambda leaf: leaf["parallel_group_path"][0].pop("parallel_group_index"),
        lambda leaf: leaf.update(parallel_group_path=[]),
        lambda leaf: leaf.update(parallel_group_path="x"),
        lambda leaf: leaf.update(parallel_group_path=[7]),
        lambda leaf: leaf.update(parallel_group_path=[leaf["parallel_group_path"][0]] * 101),
        lambda leaf: leaf.pop("parallel_group_path"),
        lambda leaf: leaf.update(parallel_group_index=2),
        lambda leaf: leaf.update(parallel_group_id="parallel-activities:9:9"),
        lambda leaf: leaf["parallel_group_path"].append(entry("parallel-activities", "activity", 9, 1, 0)),
        lambda leaf: leaf["parallel_group_path"][0].update(parallel_group_mode="select"),
        lambda leaf: leaf["parallel_group_path"][0].update(parallel_group_id="select-calls:1:3"),
    ],
)
def test_refuses_a_label_that_is_wrong(api: ApiClient, change: Any) -> None:
    errors = refused(api, *broken(change))

    assert all(path.startswith("commands.1.parallel_group") for path in errors), errors


@pytest.mark.parametrize(
    ("batch", "path"),
    [
        (make.schedule_list(3)[:2], "commands"),
        (make.schedule_list(3)[1:], "commands.0.parallel_group_path"),
        ([*make.schedule_list(3)[:1], *make.schedule_list(3)[2:]], "commands.1.parallel_group_path"),
        ([*make.schedule_list(2)[:1], make.schedule(), *make.schedule_list(2)[1:]], "commands.1.parallel_group_path"),
        (list(reversed(make.schedule_list(2))), "commands.0.parallel_group_path"),
        ([*make.schedule_list(2), make.schedule_list(2)[1]], "commands.2.parallel_group_path"),
        ([make.schedule_list(2)[0], make.finish()], "commands.1.parallel_group_path"),
        ([*make.schedule_list(3)[:1], *make.schedule_list(2, base=4)], "commands.1.parallel_group_path"),
    ],
)
def test_wants_the_leaves_of_a_group_side_by_side(api: ApiClient, batch: list[dict[str, Any]], path: str) -> None:
    assert list(refused(api, *batch)) == [path]


def test_takes_two_groups_and_single_steps_in_one_batch(api: ApiClient) -> None:
    batch = [*make.schedule_list(2), make.schedule(), *make.schedule_list(2, base=4)]

    response = accepted(api, *batch)

    assert len(response.body["created_task_ids"]) == 5
    groups = Run.objects.get().open_groups
    assert set(groups) == {"parallel-activities:1:2", "parallel-activities:4:2"}


@pytest.mark.parametrize("names", [FIELDS[2:3], FIELDS[3:4], FIELDS[4:5]])
@pytest.mark.parametrize("where", ["path", "top level"])
def test_takes_digits_for_the_numbers_of_a_label(api: ApiClient, where: str, names: tuple[str, ...]) -> None:
    commands = copy.deepcopy(make.schedule_list(2))
    for command in commands:
        label = command["parallel_group_path"][0] if where == "path" else command
        label.update({name: str(label[name]) for name in names})

    accepted(api, *commands)

    assert Run.objects.get().open_groups["parallel-activities:1:2"]["remaining"] == 2


# -- the base ----------------------------------------------------------------------------------------------------------


def test_rewrites_a_base_that_the_worker_predicted_too_low(api: ApiClient) -> None:
    accepted(api, make.schedule(), make.schedule(), *make.schedule_list(2, base=1))

    labels = [execution.event_fields["parallel_group_id"] for execution in ActivityExecution.objects.filter(
        step_number__gt=2)]  # fmt: skip
    assert labels == ["parallel-activities:3:2"] * 2
    event = HistoryEvent.objects.get(sequence=6)
    assert event.payload["parallel_group_base_sequence"] == 3
    assert event.payload["parallel_group_path"] == [entry("parallel-activities", "activity", 3, 2, 1)]


def test_rewrites_every_level_of_a_nested_group_by_the_same_shift(api: ApiClient) -> None:
    accepted(api, make.schedule(), make.schedule(), *nested())

    last = ActivityExecution.objects.get(step_number=5)
    assert last.event_fields["parallel_group_path"] == [
        entry("parallel-calls", "mixed", 3, 3, 2),
        entry("parallel-activities", "activity", 4, 2, 1),
    ]


def test_takes_a_rewritten_group_for_a_repeat_when_it_comes_again(api: ApiClient) -> None:
    accepted(api, make.schedule(), *make.schedule_list(2, base=1))
    single = ActivityExecution.objects.get(step_number=1)
    held = [make.lease_activity() for _ in range(3)]
    make.complete_step(next(lease for lease in held if lease.body["activity_execution_id"] == single.id))

    response = send(api, make.lease_workflow(), "complete", commands=make.schedule_list(2, base=2))

    assert response.body["created_task_ids"] == []
    assert ActivityExecution.objects.count() == 3


# -- re-emission -------------------------------------------------------------------------------------------------------


def reemitted(api: ApiClient, lease: make.Lease, *more: dict[str, Any]) -> dict[str, Any]:
    return send(api, lease, "complete", commands=[*make.schedule_list(2), *more]).body


def test_changes_nothing_when_an_open_group_comes_again(api: ApiClient) -> None:
    accepted(api, *make.schedule_list(2))
    first = make.lease_activity()
    run = Run.objects.get()
    make.complete_step(first)
    # Only the whole group wakes the run; repair gives it a task meanwhile, as an update would.
    lease = extra_task(run)
    before = HistoryEvent.objects.count()

    body = reemitted(api, lease)

    assert body["created_task_ids"] == []
    assert HistoryEvent.objects.count() == before
    assert ActivityExecution.objects.count() == 2
    assert Run.objects.get().next_step_number == 3


def extra_task(run: Run) -> make.Lease:
    """A workflow task that nothing woke, leased."""
    from durable.changes import RunChanges
    from durable.sql import locking
    from durable.sql.clock import read_clock
    from durable.sql.transactions import transactional

    @transactional
    def wake() -> None:
        locked = locking.lock_run(run.id)
        assert locked is not None
        changes = RunChanges(locked, read_clock())
        changes.wake(locked.last_history_sequence)
        changes.save()

    wake()
    return make.lease_workflow()


def test_takes_the_last_member_closing_while_a_worker_sends_the_group_again(api: ApiClient) -> None:
    accepted(api, *make.schedule_list(2))
    first, second = make.lease_activity(), make.lease_activity()
    make.complete_step(first, "one")
    lease = extra_task(Run.objects.get())
    make.complete_step(second, "two")

    body = reemitted(api, lease)

    # The repeat is no new group, and the outcome that the claim was not shown makes the next task.
    assert ActivityExecution.objects.count() == 2
    assert len(body["created_task_ids"]) == 1
    following = make.lease_workflow()
    assert following.task_id == body["created_task_ids"][0]
    assert following.history[-1].event_type == "ActivityCompleted"
    make.complete(following, make.finish("both"))
    check_invariants()


def test_takes_a_group_of_the_same_label_for_new_once_the_old_one_was_seen(api: ApiClient) -> None:
    accepted(api, *make.schedule_list(2))
    for _ in range(2):
        make.complete_step(make.lease_activity())

    body = reemitted(api, make.lease_workflow())

    assert len(body["created_task_ids"]) == 2
    assert [one.event_fields["parallel_group_id"] for one in ActivityExecution.objects.order_by("step_number")] == [
        "parallel-activities:1:2", "parallel-activities:1:2", "parallel-activities:3:2", "parallel-activities:3:2",
    ]  # fmt: skip


def test_changes_nothing_when_a_redelivered_task_sends_the_group_again(api: ApiClient) -> None:
    accepted(api, *make.schedule_list(2))
    lease = extra_task(Run.objects.get())
    lose(lease)

    body = reemitted(api, make.lease_workflow("w-2"))

    assert body["created_task_ids"] == []
    assert ActivityExecution.objects.count() == 2


def test_takes_new_commands_beside_a_repeated_group(api: ApiClient) -> None:
    accepted(api, *make.schedule_list(2))
    make.complete_step(make.lease_activity())
    lease = extra_task(Run.objects.get())

    body = reemitted(api, lease, make.schedule("side"))

    assert len(body["created_task_ids"]) == 1
    assert ActivityExecution.objects.get(activity_type="side").step_number == 3


def test_wakes_the_run_only_when_every_leaf_is_closed(api: ApiClient) -> None:
    response = accepted(api, *nested())
    run_id = response.body["run_id"]

    for closed in range(3):
        assert not Task.objects.filter(run_id=run_id, kind="workflow", status="ready").exists(), closed
        answer = send(api, make.lease_activity(), "complete", result=make.envelope(closed))
        assert (answer.body["next_task_id"] is None) == (closed < 2)

    assert Task.objects.get(run_id=run_id, kind="workflow", status="ready").id == answer.body["next_task_id"]


def test_counts_a_repeated_group_against_no_limit(api: ApiClient, override_durable: Any) -> None:
    override_durable(PENDING_ACTIVITY_COUNT=2)
    accepted(api, *make.schedule_list(2))
    lease = extra_task(Run.objects.get())

    assert reemitted(api, lease)["run_status"] == "waiting"


def test_refuses_a_broken_repeat_like_any_other(api: ApiClient) -> None:
    lease = leased_task()
    make.complete(lease, *make.schedule_list(2))
    again = extra_task(Run.objects.get(workflow_id="order-1"))

    with nothing_recorded():
        response = send(api, again, "complete", commands=make.schedule_list(2)[1:])

    assert response.status == 422
