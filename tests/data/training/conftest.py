"""Samples of examples begin with records that are prepared."""

from tests.helpers.data.examples import prepare  # noqa: F401 (a fixture)
