"""A web server that can fail, and short waits between retries."""

from collections.abc import Iterator

import pytest

from megatape.data.io import retries
from megatape.data.io.retries import Retries
from tests.helpers.processes.web import Fault, Web, served


@pytest.fixture
def quick_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let three retries follow a failure, after 0.01 s each."""
    monkeypatch.setattr(retries, "RETRIES", Retries(count=3, wait=0.01, timeout=0.5))


@pytest.fixture(scope="module")
def server() -> Iterator[Web]:
    with served() as web:
        yield web


@pytest.fixture
def web(server: Web, quick_retries: None) -> Web:
    """Return the module's server, after clearing files, faults and requests from earlier tests."""
    server.files = {}
    server.faults = []
    server.always = Fault()
    server.requests = []
    server.links = []
    return server
