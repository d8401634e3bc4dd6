"""JSON encoding of the values that ranks exchange. Decoding a value from another process cannot run code, unlike unpickling.

Plain JSON would turn tuples into lists and numeric keys into strings. So a value whose type JSON lacks becomes an object with a
single key, TAG, for a list of type name and content.
"""

import base64
import builtins
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from megatape.errors import UserError, marked_message

TAG = "$"
# Cause and remedy of receiving data from outside of the run.
STRANGER = "a process that does not belong to this run takes part: close its ports to other users (docs/cluster.md)"
# Errors that ranks exchange.
Failure = UserError | OSError


def encode(value: Any) -> bytes:
    """Encode a value.

    Args:
        value: None, number, string, path, flat uint8 tensor, UserError or OSError; or a list, tuple or dictionary of such
            values.

    Returns:
        JSON text for `decode`.

    Raises:
        TypeError: The value contains another type.
    """
    return json.dumps(_pack(value), separators=(",", ":")).encode()


def decode(text: bytes) -> Any:
    """Decode the result of `encode`.

    Returns:
        The value. Errors keep their text and `errno`. Their type is the original one, or its nearest base class that this
        process has imported.

    Raises:
        UserError: The text is not a result of `encode`.
    """
    try:
        return _unpack(json.loads(text))
    except UserError:
        raise
    except (AttributeError, ValueError, TypeError, RecursionError) as error:
        raise UserError(f"not a value that ranks exchange: {error}: {STRANGER}") from error


def _pack(value: Any) -> Any:
    """Convert a value to types of JSON."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list):
        return [_pack(part) for part in value]
    if isinstance(value, dict) and TAG not in value and all(isinstance(key, str) for key in value):
        return {key: _pack(part) for key, part in value.items()}
    name, content = _describe(value)
    return {TAG: [name, content]}


def _describe(value: Any) -> tuple[str, Any]:
    """Return the type name and content of a value whose type JSON lacks."""
    if isinstance(value, dict):
        return "dict", [[_pack(key), _pack(part)] for key, part in value.items()]
    if isinstance(value, tuple):
        return "tuple", [_pack(part) for part in value]
    if isinstance(value, Path):
        return "path", str(value)
    if isinstance(value, Tensor) and value.dtype == torch.uint8 and value.dim() == 1:
        data = value.cpu().numpy().tobytes()
        return "bytes", base64.b64encode(data).decode()
    if isinstance(value, Failure):
        names = [kind.__name__ for kind in type(value).__mro__]
        return "error", [names, marked_message(value), getattr(value, "errno", None)]
    raise TypeError(f"ranks cannot exchange a {type(value).__name__}: {value!r:.100}")


def _unpack(value: Any) -> Any:
    """Convert the result of `_pack` back to the value."""
    if isinstance(value, list):
        return [_unpack(part) for part in value]
    if not isinstance(value, dict):
        return value
    if TAG not in value:
        return {key: _unpack(part) for key, part in value.items()}
    name, content = value[TAG]
    if name == "dict":
        return {_unpack(key): _unpack(part) for key, part in content}
    if name == "tuple":
        return tuple(_unpack(part) for part in content)
    if name == "path":
        return Path(content)
    if name == "bytes":
        data = base64.b64decode(content, validate=True)
        # A copy, because an array over a bytes object is read-only.
        array = np.frombuffer(data, dtype=np.uint8).copy()
        return torch.from_numpy(array)
    if name == "error":
        return _error(*content)
    raise UserError(f"{name!r:.100} is not a type that ranks exchange: {STRANGER}")


def _error(names: list[str], text: str, number: int | None) -> Failure:
    """Create an error of the first type in `names` that this process knows."""
    known = _known_errors()
    kinds = [known[name] for name in names if name in known]
    if not kinds:
        raise UserError(f"none of {names!r:.100} is an error that ranks exchange: {STRANGER}")
    error = kinds[0](text)
    if isinstance(error, OSError):
        error.errno = number
    return error


def _known_errors() -> dict[str, type[Failure]]:
    """Return OSError, its built-in subclasses, UserError and its subclasses, by name."""
    errors: dict[str, type[Failure]] = {}
    for kind in vars(builtins).values():
        if isinstance(kind, type) and issubclass(kind, OSError):
            errors[kind.__name__] = kind
    kinds: list[type[UserError]] = [UserError]
    while kinds:
        kind = kinds.pop()
        errors[kind.__name__] = kind
        kinds += kind.__subclasses__()
    return errors
