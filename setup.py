from setuptools import setup

setup()  # pyproject.toml has the metadata
