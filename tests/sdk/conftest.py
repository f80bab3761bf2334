"""What every test with the published SDK starts from: a server process, an empty database, a client."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.sdk.session import SdkSession
from tests.server import ServerProcess

# What the server logs when something happened that nobody foresaw.
FAULTS = ("Traceback", "upkeep_duty_failed", "background_round_failed")


@pytest.fixture
def sdk(shared_server: ServerProcess, database: None) -> Iterator[SdkSession]:
    """The SDK, connected to the module's server, on an empty database. The server must not stumble meanwhile."""
    log_size = shared_server.log.stat().st_size
    with SdkSession(shared_server.url, shared_server.token) as session:
        yield session
    logged = shared_server.log.read_bytes()[log_size:].decode()
    assert not any(fault in logged for fault in FAULTS), logged[-3000:]
