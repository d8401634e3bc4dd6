"""Errors from servers and clients become one line. Requests are repeated where that may help."""

from types import SimpleNamespace
from typing import Any

import pytest

from megatape.data.io.files import file_states
from megatape.data.io.retries import Attempts
from megatape.errors import PathError

pytestmark = pytest.mark.usefixtures("quick_retries")


def test_a_missing_server_is_named() -> None:
    with pytest.raises(OSError, match="127.0.0.1:9/x: .*Connect.*, after 4 attempts"):
        file_states(["http://127.0.0.1:9/x"])


def client_error(name: str, base: type[Exception] = Exception, status: int = 0, **more: int) -> Exception:
    """Return an error like those of botocore, httpx and gcsfs. Most are no OSErrors, and are recognized by their names."""
    if name == "ConnectError":
        base = type("TransportError", (base,), {})
    error: Any = type(name, (base,), more)("why\nit failed")
    error.response = None
    if status:
        error.response = SimpleNamespace(status_code=status)
    return error


@pytest.mark.parametrize(
    ("error", "num_attempts", "message"),
    [
        (
            client_error("NoCredentialsError"),
            1,
            r"s3://b/x: access denied \(NoCredentialsError: why it failed\): set AWS_ACCESS_KEY",
        ),
        (client_error("HfHubHTTPError", OSError, 401), 1, "access denied .*: set AWS_ACCESS_KEY_ID"),
        (PermissionError("Forbidden"), 1, r"access denied \(PermissionError: Forbidden\)"),
        (client_error("HfHubHTTPError", OSError, 400), 1, "s3://b/x: HfHubHTTPError: why it failed$"),
        (client_error("ParamValidationError"), 1, "s3://b/x: ParamValidationError: why it failed$"),
        (client_error("OfflineModeIsEnabled", ConnectionError), 1, "s3://b/x: OfflineModeIsEnabled: why it failed$"),
        (ValueError("Invalid endpoint: x"), 1, "s3://b/x: ValueError: Invalid endpoint: x$"),
        (client_error("HfHubHTTPError", OSError, 503), 4, "HfHubHTTPError: why it failed, after 4 attempts: check the network"),
        (client_error("HttpError", code=503), 4, "HttpError: why it failed, after 4 attempts"),
        (client_error("HttpError", code=403), 1, "access denied"),
        (client_error("ConnectError"), 4, "ConnectError: why it failed, after 4 attempts: check the network"),
        (OSError(5, "Input/output error"), 4, "Input/output error, after 4 attempts"),
    ],
    ids=lambda value: f"{type(value).__name__}" if isinstance(value, Exception) else None,
)
def test_errors_of_clients(error: Exception, num_attempts: int, message: str) -> None:
    """Client errors become one line. Requests are repeated where that may help."""
    num_calls = 0

    def fail() -> None:
        nonlocal num_calls
        num_calls += 1
        raise error

    with pytest.raises(PathError, match=message):
        Attempts("s3://b/x").run(fail)

    assert num_calls == num_attempts


def test_a_bug_of_the_program_keeps_its_traceback() -> None:
    with pytest.raises(KeyError):
        Attempts("s3://b/x").run(lambda: {}["x"])
