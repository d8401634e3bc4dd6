"""Lets setuptools build the package, whose metadata are in pyproject.toml."""

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parent


class BuildWithProjectFiles(build_py):
    """Puts configs/ and constraints.txt into the package, where megatape.utils.files.project_files.project_file finds them."""

    def run(self) -> None:
        super().run()
        if not self.editable_mode:
            folder = Path(self.build_lib) / "megatape" / "project"
            shutil.copytree(ROOT / "configs", folder / "configs", dirs_exist_ok=True)
            shutil.copy(ROOT / "constraints.txt", folder)


setup(cmdclass={"build_py": BuildWithProjectFiles})
