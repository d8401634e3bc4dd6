"""The position encodings of the model, by name: here all that are registered, in an exported folder the one of its model."""

import sys
from importlib import import_module
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from types import ModuleType
from typing import Any

from megatape.registry import ENCODINGS

from .encoding import Encoding


def find_encoding(name: str) -> tuple[type[Encoding], bool]:
    """The class of the encoding `name`, and whether rope_parameters may change its frequencies.

    Raises ValueError if there is none.
    """
    entry = ENCODINGS.get(name) if isinstance(name, str) else None
    if entry is None or entry.exported is None:
        known = ", ".join(name for name, entry in ENCODINGS.items() if entry.exported)
        raise ValueError(f"encoding {name!r} has no installed code: register it, or use one of {known}")
    module, _, attribute = entry.exported.partition(":")
    found: Any = getattr(_load(module), attribute)
    return found, entry.scalable


def _load(module: str) -> ModuleType:
    """The module, as one of this package: export copies its file beside ours, so that it imports them relatively."""
    name = f"{__package__}.{module.rpartition('.')[2]}"
    if module == name:
        return import_module(name)
    if name not in sys.modules:
        origin = find_spec(module)
        assert origin is not None and origin.origin is not None, f"{module}, named in the registry, does not exist"
        spec = spec_from_file_location(name, origin.origin)
        assert spec is not None and spec.loader is not None
        sys.modules[name] = module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]
