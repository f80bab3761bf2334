"""What crash tests share: the process that forks children which die."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.conftest import end_other_sessions
from tests.crash.dying import ForkServer
from tests.server import ROOT, ServerProcess


@pytest.fixture(scope="module")
def forks(django_db_setup: None, django_db_blocker: Any) -> Iterator[ForkServer]:
    """Children with Django loaded, on this test's database."""
    with django_db_blocker.unblock():
        environment = ServerProcess().environment()
        # Sessions are counted here, so none of an earlier test may be left.
        end_other_sessions()
    server = ForkServer(environment, str(ROOT))
    yield server
    server.close()
