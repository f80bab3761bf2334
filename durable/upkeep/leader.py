"""Leadership of upkeep: one row, one holder, an expiry. The database decides.

A leader renews at each pass. Every duty decides again under row locks, so two leaders for a moment do no harm: the
lease only keeps processes from doing the same work at the same time.
"""

from __future__ import annotations

from datetime import timedelta

from durable import conf
from durable.models import UpkeepLeader
from durable.sql import rows
from durable.sql.clock import read_clock
from durable.sql.transactions import transactional

NAME = "upkeep"


@transactional
def take_leadership(holder: str) -> bool:
    """Take or keep the leadership; False while another process holds it."""
    now = read_clock()
    expires_at = now + timedelta(seconds=conf.current().upkeep_leader_seconds)
    free = UpkeepLeader.objects.filter(name=NAME, holder=holder) | UpkeepLeader.objects.filter(
        name=NAME, expires_at__lte=now
    )
    # The insert comes last: on MariaDB it keeps a shared lock on a row that exists, and two processes that went on to
    # update it would wait for each other.
    return (
        free.update(holder=holder, expires_at=expires_at) == 1
        or rows.insert([UpkeepLeader(name=NAME, holder=holder, expires_at=expires_at)], or_ignore=True) == 1
    )


@transactional
def give_up_leadership(holder: str) -> None:
    """Let the next process take over at once."""
    UpkeepLeader.objects.filter(name=NAME, holder=holder).delete()
