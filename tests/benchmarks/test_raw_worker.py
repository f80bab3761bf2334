"""The raw worker keeps to what docs/protocol/carried-polls.md asks of workers: nothing leaks, nothing runs twice."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from benchmarks.http1 import Answer, ConnectionLost
from benchmarks.reservations import Lease, Reservations
from tests.benchmarks.scripted_server import Body, ScriptedServer, answer, leased, run_worker_against, workflow_task


def test_loses_no_room_to_a_thousand_missing_keys_and_goes_on_carrying() -> None:
    wanted = 1000

    def script(server: ScriptedServer) -> None:
        def on_poll(kind: str, body: Body) -> Answer | None:
            if kind == "activity":
                return None
            number = len(server.ids_polled("workflow"))
            if number > wanted:
                server.stop.set()
                return None
            return answer(leased(workflow_task(number)))

        server.on_poll = on_poll

    server = run_worker_against(script)

    carried = [body["workflow_poll"]["poll_request_id"] for body in server.completions]
    polled = server.ids_polled("workflow")
    assert (len(carried), len(polled)) == (wanted, wanted + 1)
    assert len({*carried, *polled}) == 2 * wanted + 1, "an id was used for another poll"
    assert len(server.ids_polled("activity")) == 1
    assert server.places_held <= 2


def test_fetches_a_lease_under_the_id_that_was_carried() -> None:
    def script(server: ScriptedServer) -> None:
        def on_poll(kind: str, body: Body) -> Answer | None:
            if kind == "activity":
                return None
            number = len(server.ids_polled("workflow"))
            if number == 3:
                server.stop.set()
                return None
            return answer(leased(workflow_task(number)))

        server.on_poll = on_poll
        server.on_complete = lambda body: answer(
            {"reason": None, "workflow_poll": {"leased": True}} if len(server.completions) == 1 else {"reason": None}
        )

    server = run_worker_against(script)

    carried = server.completions[0]["workflow_poll"]["poll_request_id"]
    assert server.ids_polled("workflow")[1] == carried
    assert [body["lease_owner"] for body in server.completions] == ["w", "w"]


def test_runs_a_task_that_came_with_the_answer_without_polling_for_it() -> None:
    def script(server: ScriptedServer) -> None:
        def on_poll(kind: str, body: Body) -> Answer | None:
            if kind == "workflow" and len(server.ids_polled("workflow")) == 1:
                return answer(leased(workflow_task(1)))
            return None

        def on_complete(body: Body) -> Answer:
            if len(server.completions) == 3:
                server.stop.set()
                return answer({"reason": None})
            task = workflow_task(len(server.completions) + 1)
            return answer({"reason": None, "workflow_poll": {"leased": True, **leased(task)}})

        server.on_poll, server.on_complete = on_poll, on_complete

    server = run_worker_against(script, "inline")

    assert len(server.completions) == 3
    assert all(body["workflow_poll"]["deliver"] == "inline" for body in server.completions)
    assert len(server.ids_polled("workflow")) <= 2


def test_takes_a_new_id_when_the_lease_ended_before_it_was_fetched() -> None:
    def script(server: ScriptedServer) -> None:
        def on_poll(kind: str, body: Body) -> Answer | None:
            if kind == "activity":
                return None
            number = len(server.ids_polled("workflow"))
            if number == 1:
                return answer(leased(workflow_task(1)))
            if number == 2:
                return answer({"task": None, "reason": "poll_cached_task_expired"}, 409)
            server.stop.set()
            return None

        server.on_poll = on_poll
        server.on_complete = lambda body: answer({"reason": None, "workflow_poll": {"leased": True}})

    server = run_worker_against(script)

    first, fetched, after = server.ids_polled("workflow")
    assert fetched == server.completions[0]["workflow_poll"]["poll_request_id"]
    assert after not in (first, fetched)


def test_sends_a_completion_again_whose_answer_was_lost_and_polls_under_the_original_id() -> None:
    def script(server: ScriptedServer) -> None:
        def on_poll(kind: str, body: Body) -> Answer | None:
            if kind == "activity":
                return None
            if len(server.ids_polled("workflow")) == 1:
                return answer(leased(workflow_task(1)))
            server.stop.set()
            return None

        def on_complete(body: Body) -> Answer:
            if len(server.completions) == 1:
                raise ConnectionLost("gone")
            return answer({"reason": "already_completed", "recorded": False})

        server.on_poll, server.on_complete = on_poll, on_complete

    server = run_worker_against(script)

    assert server.completions[0] == server.completions[1]
    assert len(server.completions) == 2, "the task ran twice"
    assert server.ids_polled("workflow")[1] == server.completions[0]["workflow_poll"]["poll_request_id"]


def test_carries_nothing_unless_it_is_told_to() -> None:
    def script(server: ScriptedServer) -> None:
        def on_poll(kind: str, body: Body) -> Answer | None:
            if kind == "workflow" and len(server.ids_polled("workflow")) == 1:
                return answer(leased(workflow_task(1)))
            if kind == "workflow":
                server.stop.set()
            return None

        server.on_poll = on_poll

    server = run_worker_against(script, "off")

    assert server.completions[0].keys().isdisjoint({"activity_poll", "workflow_poll"})


def test_times_a_lease_by_the_clock_of_the_server() -> None:
    long_ago = datetime(2020, 1, 1, tzinfo=UTC)

    lease = Lease.received(leased(workflow_task(1), seconds=10, server_time=long_ago), received_at=500.0)

    assert lease.ends_at == 510.0


def test_refuses_a_lease_that_has_ended() -> None:
    with pytest.raises(ValueError, match="ended"):
        Lease.received(leased(workflow_task(1), seconds=0), received_at=500.0)


def test_has_room_for_one_task_of_each_kind() -> None:
    reservations = Reservations()
    workflow, activity = reservations.reserve("workflow"), reservations.reserve("activity")

    assert workflow is not None
    assert activity is not None
    assert reservations.reserve("workflow") is None
    reservations.release(workflow)
    assert reservations.reserve("workflow") is not None
    with pytest.raises(KeyError):
        reservations.release(workflow)
