"""Fixtures of samples: the prepared records that samples of examples start from."""

from tests.helpers.data.examples import prepare  # noqa: F401 (a fixture)
