"""Many threads on one process's pool: claims and completions without a single error, on SQLite's one writer too."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from typing import Any

from django.db import connection

from durable import metrics
from durable.claims import Ready
from durable.leases import Leased
from durable.models import Run, Task
from durable.operations import poll
from durable.operations.complete_activity import complete_activity
from durable.operations.complete_workflow_task import complete_workflow_task
from durable.sql.pool import Work
from durable.states import RunStatus, TaskKind, TaskStatus
from tests import factories as make
from tests.client import ApiClient
from tests.concurrency.tools import all_at_once
from tests.factories import Lease
from tests.invariants import check_invariants

THREADS = 8
# The one writer of SQLite is what this is about; the random mix presses the others harder.
CLAIMS_PER_THREAD = 200 if connection.vendor == "sqlite" else 50
# Each run has one workflow task that schedules, `STEPS` activities, and one workflow task that ends it.
STEPS = 6


def test_eight_threads_claim_and_complete_through_the_pool_without_an_error(api: ApiClient) -> None:
    make.register()
    wanted = THREADS * CLAIMS_PER_THREAD
    for _ in range(wanted // (STEPS + 2)):
        make.start()
    retries = metrics.TRANSACTION_RETRIES._value.get()
    left = itertools.count(wanted, -1)
    taking = threading.Lock()

    def work() -> int:
        done = 0
        while True:
            with taking:
                if next(left) <= 0:
                    return done
            claim_and_complete(api)
            done += 1

    outcomes = all_at_once([work] * THREADS)

    assert [outcome for outcome in outcomes if isinstance(outcome, Exception)] == []
    assert sum(outcomes) == wanted
    assert not Run.objects.exclude(status=RunStatus.COMPLETED).exists()
    assert not Task.objects.exclude(status=TaskStatus.COMPLETED).exists()
    assert metrics.TRANSACTION_RETRIES._value.get() == retries
    check_invariants()


def claim_and_complete(api: ApiClient) -> None:
    """Lease whatever is there, workflow tasks first, and report it done; there is always something or it comes soon."""
    for kind in itertools.cycle((TaskKind.WORKFLOW, TaskKind.ACTIVITY)):
        lease = claim(api, kind)
        if lease is None:
            continue
        if kind == TaskKind.ACTIVITY:
            in_pool(api, Work.LOCK_RUN, complete_activity, lease.report, {"result": make.envelope(1)})
        else:
            is_first = len(lease.history) == 2
            commands = make.schedule_list(STEPS) if is_first else [make.finish()]
            in_pool(api, Work.LOCK_RUN, complete_workflow_task, lease.report, {"commands": commands})
        return


def claim(api: ApiClient, kind: TaskKind) -> Lease | None:
    """As a poll does it: the look among the readers, the claim among the writers."""
    request = make.poll_request(kind)
    seen = in_pool(api, Work.READ, poll.look, request)
    outcome = in_pool(api, Work.WRITE, poll.lease, request, seen) if isinstance(seen, Ready) else seen
    if not isinstance(outcome, Leased):
        return None
    return Lease(outcome.claimed.body, outcome.page.events if outcome.page else [])


def in_pool(api: ApiClient, work: Work, operation: Callable[..., Any], *args: Any) -> Any:
    return api.wait(api.runtime.pool.run(work, operation, *args))
