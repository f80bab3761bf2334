"""`start_timer`: one step that ends when its time has come (docs/protocol/history.md 5.3 and 10.1)."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from durable import conf
from durable.commands.batch import Batch, check_limit
from durable.commands.fields import Fields
from durable.commands.groups import GroupPlace, read_place
from durable.commands.registry import CommandType, register
from durable.history import events
from durable.ids import new_id
from durable.models import Timer


@dataclass(frozen=True, slots=True, kw_only=True)
class StartTimer:
    """A validated `start_timer`."""

    delay_seconds: int
    place: GroupPlace | None


def _validate(fields: Fields) -> StartTimer | None:
    delay_seconds, place = fields.whole("delay_seconds", least=0, required=True), read_place(fields)
    return None if delay_seconds is None else StartTimer(delay_seconds=delay_seconds, place=place)


def _apply(batch: Batch, command: StartTimer) -> None:
    if batch.repeats(command.place):
        return
    changes, run, now = batch.changes, batch.changes.run, batch.changes.now
    check_limit("pending_timer_count", run.pending_timer_count + 1, conf.current().pending_timer_count)
    step_number = changes.take_step_number()
    place = batch.enter_group(command.place, step_number)
    # Without delay it fires at the next pass all the same: code that waits has stopped, so it needs a task to go on.
    fire_at = now + timedelta(seconds=command.delay_seconds)
    timer = Timer(
        id=new_id(),
        namespace=run.namespace,
        run_id=run.id,
        step_number=step_number,
        delay_seconds=command.delay_seconds,
        fire_at=fire_at,
        due_at=fire_at,
        event_fields=place.event_fields() if place else None,
        group_id=place.outermost.id if place else None,
        created_at=now,
    )
    changes.append(events.timer_scheduled(timer))
    changes.set(pending_timer_count=run.pending_timer_count + 1)
    changes.timers.append(timer)


register(CommandType(name="start_timer", validate=_validate, apply=_apply, owns=frozenset({"delay_seconds"})))
