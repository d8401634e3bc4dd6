"""Models whose docstrings describe their fields."""

import inspect
import re
from typing import Any

from pydantic import BaseModel


class DocumentedModel(BaseModel):
    """Base of pydantic models that take their fields' descriptions from the docstring's section "Attributes"."""

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        super().__pydantic_init_subclass__(**kwargs)
        _, descriptions = split_docstring(cls)
        for name in descriptions.keys() & cls.model_fields.keys():
            cls.model_fields[name].description = descriptions[name]


def split_docstring(kind: type) -> tuple[str, dict[str, str]]:
    """Split a class docstring into the text before "Attributes:", and the descriptions by name, each on one line."""
    docstring = inspect.cleandoc(kind.__doc__ or "")
    text, _, attributes = docstring.partition("\n\nAttributes:\n")
    descriptions: dict[str, str] = {}
    for name, description in re.findall(r"^    (\w+): (.*(?:\n {8}.*)*)", attributes, re.MULTILINE):
        descriptions[name] = " ".join(description.split())
    return text, descriptions
