"""Versions of the running software."""

from importlib.metadata import PackageNotFoundError

import pytest

from megatape import software
from megatape.software import package_version


def test_the_version_of_a_clone_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without a package index has the clone on PYTHONPATH. A checkout still has a commit."""
    number, *commit = package_version().split(" ", 1)

    def missing(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(software, "version", missing)
    assert package_version() == " ".join(["not installed", *commit])
    assert number[0].isdigit()
