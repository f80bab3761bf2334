"""It runs a workflow from start to end."""

from __future__ import annotations

import pytest

from durable.models import Run
from tests import factories as make
from tests.client import ApiClient
from tests.invariants import check_invariants


@pytest.mark.usefixtures("database")
def test_runs_five_steps_and_ends() -> None:
    make.register()
    started = make.start()
    for number in range(5):
        make.complete(make.lease_workflow(), make.schedule())
        make.complete_step(make.lease_activity(), number)
    make.complete(make.lease_workflow(), make.finish("done"))

    assert Run.objects.get(id=started.run.id).status == "completed"
    expected = ["StartAccepted", "WorkflowStarted"]
    expected += ["ActivityScheduled", "ActivityStarted", "ActivityCompleted"] * 5 + ["WorkflowCompleted"]
    assert make.event_types(started.run.id) == expected
    check_invariants()


def test_answers_ready(api: ApiClient) -> None:
    assert api.get("/api/ready", token=None).status == 200
