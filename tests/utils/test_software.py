"""Versions of the running software."""

from importlib.metadata import PackageNotFoundError

import pytest

from megatape.utils import software
from megatape.utils.software import package_version


def test_the_version_of_a_clone_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a machine without a package index, where it is on PYTHONPATH. A checkout has a commit all the same."""
    number, *commit = package_version().split(" ", 1)

    def missing(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(software, "version", missing)
    assert package_version() == " ".join(["not installed", *commit])
    assert number[0].isdigit()
