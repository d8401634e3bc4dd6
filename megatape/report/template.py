"""Fills in the pages' templates: everything is in the page, nothing is loaded from elsewhere."""

from datetime import UTC, datetime
from importlib.resources import files
from typing import Any

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup

from megatape import pictures
from megatape.units import format_number

ASSETS = files("megatape.report") / "assets"
PAGE = "index.html"


def fill(template: str, scripts: tuple[str, ...] = (), **values: Any) -> str:
    """The page of a template.

    Surrogates, which stand for bytes of file names that are not UTF-8, become escapes: the page can be encoded.

    Args:
        template: Name of the file.
        scripts: Names of the files of its scripts.
        values: Variables of the template. They are shown as text, never as HTML.
    """
    environment = Environment(
        loader=FunctionLoader(asset), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["short"] = format_number
    environment.policies["json.dumps_kwargs"] = {"default": vars}  # of dataclasses
    text = environment.get_template(template).render(
        made=f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
        light=pictures.LIGHT,
        dark=pictures.DARK,
        style=Markup(asset("page.css")),
        scripts=[Markup(asset(script)) for script in scripts],
        **values,
    )
    return text.encode(errors="backslashreplace").decode()


def asset(name: str) -> str:
    """The content of a file of the pages."""
    return (ASSETS / name).read_text(encoding="utf-8")
