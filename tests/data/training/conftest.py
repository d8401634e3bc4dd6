"""Samples of examples begin with records that are prepared."""

from tests.helpers.examples import prepare  # noqa: F401 (a fixture)
