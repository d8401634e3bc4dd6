"""Lets setuptools build the package, whose metadata are in pyproject.toml."""

from setuptools import setup

setup()  # pyproject.toml has the metadata
