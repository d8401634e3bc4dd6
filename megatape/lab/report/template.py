"""Fills in the pages' templates: everything is in the page, nothing is loaded from elsewhere."""

import re
from datetime import UTC, datetime
from importlib.resources import files
from typing import Any

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup, escape

from megatape.lab import pictures
from megatape.utils.masking import mask
from megatape.utils.units import format_number

ASSETS = files("megatape.lab.report") / "assets"
PAGE = "index.html"
GENERATOR = "megatape"  # in the head of every page


def fill(template: str, scripts: tuple[str, ...] = (), refresh: float | None = None, **values: Any) -> str:
    """The page of a template.

    Surrogates, which stand for bytes of file names that are not UTF-8, become escapes: the page can be encoded.

    Args:
        template: Name of the file.
        scripts: Names of the files of its scripts.
        refresh: Seconds after which charts.js reads the page again; None: never.
        values: Variables of the template. They are shown as text, never as HTML.
    """
    environment = Environment(
        loader=FunctionLoader(asset), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["short"] = format_number
    environment.filters["breakable"] = breakable
    environment.policies["json.dumps_kwargs"] = {"default": vars}  # of dataclasses
    text = environment.get_template(template).render(
        made=f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC",
        generator=GENERATOR,
        refresh=refresh,
        light=pictures.LIGHT,
        dark=pictures.DARK,
        style=Markup(asset("page.css")),
        scripts=[Markup(asset(script)) for script in scripts],
        **values,
    )
    return mask(text).encode(errors="backslashreplace").decode()


def breakable(text: str) -> Markup:
    """A name or path, which may go on in the next line after a separator before a letter, and nowhere else."""
    return Markup(re.sub(r"((?<=\w)-|[./_=])(?=[^\W\d_])", r"\1<wbr>", str(escape(mask(text)))))


def asset(name: str) -> str:
    """The content of a file of the pages."""
    return (ASSETS / name).read_text(encoding="utf-8")
