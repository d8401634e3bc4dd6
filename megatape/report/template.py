"""Fills in the pages' templates: everything is in the page, nothing is loaded from elsewhere."""

from datetime import UTC, datetime
from importlib.resources import files
from typing import Any

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup

from megatape.report.runs import short

ASSETS = files("megatape.report") / "assets"
PAGE = "index.html"


def fill(template: str, scripts: tuple[str, ...] = (), **values: Any) -> str:
    """The page of a template, with these scripts. values: what the template shows; as text, never as HTML, and with escapes for
    lone surrogates, which names of files and JSON may have and UTF-8 has not."""
    environment = Environment(
        loader=FunctionLoader(asset), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["short"] = short
    page = environment.get_template(template).render(
        made=f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
        style=Markup(asset("page.css")),
        scripts=[Markup(asset(script)) for script in scripts],
        **values,
    )
    return page.encode("utf-8", "backslashreplace").decode()


def asset(name: str) -> str:
    """The content of a file of the pages."""
    return (ASSETS / name).read_text(encoding="utf-8")
