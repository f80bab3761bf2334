"""What every test with the published SDK starts from: a server process, an empty database, a client."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from tests.sdk.session import SdkSession
from tests.server import ServerProcess

# How the server's log shows that something happened which nobody foresaw, in either of its forms.
_FAULT = re.compile(r'\[error|"level": "error"|Traceback')


@pytest.fixture(scope="module")
def session(shared_server: ServerProcess) -> Iterator[SdkSession]:
    """The SDK, connected to the module's server; making its client costs a tenth of a second."""
    with SdkSession(shared_server.url, shared_server.token) as session:
        yield session


@pytest.fixture
def sdk(session: SdkSession, shared_server: ServerProcess, database: None) -> Iterator[SdkSession]:
    """The SDK on an empty database. The server must not stumble meanwhile."""
    log_size = shared_server.log.stat().st_size
    yield session
    logged = shared_server.log.read_bytes()[log_size:].decode()
    assert not _FAULT.search(logged), logged[-3000:]
