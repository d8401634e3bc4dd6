"""Folders that training and checkpoints do not import, although their layers lie below."""

import pytest

from tests.helpers.import_graph import MODULES, imports_of

FORBIDDEN = {
    "megatape.training": ("megatape.hf", "megatape.tools", "megatape.lab"),
    "megatape.checkpoint": ("megatape.model", "megatape.hf"),
}


@pytest.mark.parametrize("package", FORBIDDEN)
def test_forbidden_imports(package: str) -> None:
    modules = [module for module in MODULES if module.startswith(f"{package}.")]
    assert modules
    found = []
    for module in modules:
        for imported in imports_of(module):
            if any(f"{imported}.".startswith(f"{other}.") for other in FORBIDDEN[package]):
                found.append(f"{module} imports {imported}")
    assert not found
