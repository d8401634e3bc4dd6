"""Values keep their types when sent to another rank, and reading them runs no code."""

import errno
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch

from megatape.data.io.retries import RemoteError
from megatape.distributed.values.serialization import TAG, decode, encode
from megatape.errors import MissingPath, NotSaved, UserError, flag, marked_message


@pytest.mark.parametrize(
    "value",
    [
        None,
        [True, 1, 0.1, float("inf"), "text", "\udcff"],
        ("a tuple", (1, [2])),
        {"name": {"nested": [1, None]}},
        {("exp_avg", "weight"): 2**62, 3: "three", None: (), 1.5: 0},
        {TAG: ["tuple", [1]]},
        [Path("runs/a")],
    ],
    ids=repr,
)
def test_values_survive(value: Any) -> None:
    decoded = decode(encode(value))
    assert decoded == value
    assert repr(decoded) == repr(value)


def test_generators_survive() -> None:
    state = torch.get_rng_state()
    decoded = decode(encode([state, torch.empty(0, dtype=torch.uint8)]))
    assert torch.equal(decoded[0], state)
    assert decoded[1].numel() == 0


@pytest.mark.parametrize(
    "error",
    [
        UserError(f"{flag('tp')} is 3"),
        NotSaved("steps 1 to 2"),
        RemoteError("away"),
        MissingPath("gone"),
        PermissionError("denied"),
    ],
)
def test_errors_survive(error: Any) -> None:
    if isinstance(error, OSError):
        error.errno = errno.EIO
    decoded = decode(encode(error))
    assert type(decoded) is type(error)
    assert (str(decoded), getattr(decoded, "errno", None)) == (str(error), getattr(error, "errno", None))
    # Marked options stay marked, so that a command shows their flags on every rank.
    assert marked_message(decoded) == marked_message(error)


def test_an_error_that_another_process_defines_is_its_nearest_base() -> None:
    kind: Any = type("OwnPathError", (MissingPath,), {})
    text = encode(kind("gone")).replace(b"OwnPathError", b"NotDefinedHere")
    assert type(decode(text)) is MissingPath


UNSUPPORTED = [object(), {1, 2}, torch.zeros(2), torch.uint8, ValueError("of the program")]


@pytest.mark.parametrize("value", UNSUPPORTED, ids=lambda value: type(value).__name__)
def test_other_types_are_refused_when_they_are_sent(value: Any) -> None:
    with pytest.raises(TypeError, match="ranks cannot exchange a "):
        encode([value])


class Payload:
    """Value whose pickle writes a file when it is read."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> Any:
        return Path.touch, (self.marker,)


TEXTS = [
    b"",
    b"[1",
    b"\xff",
    b'{"$": ["os.system", "true"]}',
    b'{"$": 1}',
    b'{"$": ["error", [["SystemExit"], "text", 0]]}',
    b'{"$": ["error", ["SystemExit"]]}',
    b'{"$": ["bytes", "?"]}',
    b'{"$": ["dict", [[[], 1]]]}',
    b"[" * 100_000,
]


@pytest.mark.parametrize("text", TEXTS)
def test_a_text_that_is_no_value(text: bytes) -> None:
    with pytest.raises(ValueError):
        decode(text)


def test_no_pickle_runs(tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    with pytest.raises(ValueError):
        decode(pickle.dumps(Payload(marker)))
    assert not marker.exists()
