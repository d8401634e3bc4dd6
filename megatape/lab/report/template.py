"""Fills in the templates of pages. A page is self-contained: it loads nothing."""

import re
from datetime import UTC, datetime
from importlib.resources import files
from typing import Any

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup, escape

from megatape.lab import pictures
from megatape.utils.units import format_number
from megatape.utils.url_secrets import mask_secrets

ASSETS = files("megatape.lab.report") / "assets"
PAGE = "index.html"
# Scripts of a page with charts, in the order in which they need each other.
CHART_SCRIPTS = ("view.js", "numbers.js", "layout.js", "chart.js", "controls.js")
# Name in the head of every page.
GENERATOR = "megatape"
# A separator before a letter, after which a name or path may be broken.
BREAK = re.compile(r"((?<=\w)-|[./_=])(?=[^\W\d_])")


def fill(template: str, scripts: tuple[str, ...] = (), refresh: float | None = None, **values: Any) -> str:
    """Fill in a template.

    Surrogates, which represent bytes of file names that are not UTF-8, become escapes, so that the page can be encoded.

    Args:
        template: File name of the template.
        scripts: File names of the page's scripts.
        refresh: Seconds after which controls.js reloads the page, None for never.
        values: Variables of the template. They are shown as text, never as HTML.
    """
    environment = Environment(
        loader=FunctionLoader(asset),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["short"] = format_number
    environment.filters["breakable"] = breakable
    # Serializes dataclasses.
    environment.policies["json.dumps_kwargs"] = {"default": vars}
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
    return mask_secrets(text).encode(errors="backslashreplace").decode()


def breakable(text: str) -> Markup:
    """Let a browser break a name or path after a separator before a letter, and nowhere else."""
    escaped = str(escape(mask_secrets(text)))
    return Markup(BREAK.sub(r"\1<wbr>", escaped))


def asset(name: str) -> str:
    """Read a file of the pages' assets."""
    return (ASSETS / name).read_text(encoding="utf-8")
