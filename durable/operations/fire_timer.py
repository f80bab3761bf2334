"""Fire a timer whose time has come (docs/protocol/history.md 10.1): upkeep calls it for timers that are due."""

from __future__ import annotations

from durable.changes import RunChanges
from durable.history import events
from durable.models import Timer
from durable.sql import locking, rows
from durable.sql.clock import read_clock
from durable.sql.transactions import transactional
from durable.states import TimerStatus, is_terminal
from durable.steps import end_step


@transactional
def fire_timer(timer_id: str) -> bool:
    """Record that the timer fired, and wake its run; whether it was due. Never early, not by a microsecond.

    A run that somebody holds at this moment is left to the next pass.
    """
    seen = Timer.objects.filter(id=timer_id).first()
    run = locking.lock_run(seen.run_id, waits=False) if seen else None
    if run is None or is_terminal(run.status):
        return False
    # Read again: timers are written under the run's lock, which is held only now.
    timer, now = Timer.objects.get(id=timer_id), read_clock()
    if timer.status != TimerStatus.PENDING or timer.fire_at > now:
        return False
    changes = RunChanges(run, now)
    sequence = changes.append(events.timer_fired(timer, now))
    fired = rows.update(
        Timer,
        {"status": TimerStatus.FIRED, "due_at": None, "closed_at": now},
        {"id": timer.id, "status": TimerStatus.PENDING},
    )
    if fired != 1:
        raise AssertionError(f"timer {timer.id} changed under its run's lock")
    changes.set(pending_timer_count=run.pending_timer_count - 1)
    end_step(changes, timer.group_id, sequence)
    changes.save()
    return True
