"""Renders the templates of pages. A page is self-contained: it loads nothing."""

import re
from datetime import UTC, datetime
from importlib.resources import files
from typing import Any

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup, escape

from megatape.lab import pictures
from megatape.utils.text.units import format_number
from megatape.utils.text.url_secrets import mask_secrets

ASSETS = files("megatape.lab.report") / "assets"
PAGE = "index.html"
# Scripts for pages with charts. Each needs those before it.
CHART_SCRIPTS = ("view.js", "numbers.js", "layout.js", "chart.js", "controls.js")
# Name in the head of every page.
GENERATOR = "megatape"
# Separator before a letter. Names and paths may be broken after it.
BREAK = re.compile(r"((?<=\w)-|[./_=])(?=[^\W\d_])")


def fill(template: str, scripts: tuple[str, ...] = (), refresh: float | None = None, **values: Any) -> str:
    """Render a template.

    Args:
        template: Template file name.
        scripts: Script file names.
        refresh: Seconds until controls.js reloads the page, None for never.
        values: Template variables, shown as text, never as HTML.
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
    # Serialize dataclasses as objects.
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
    # Escape surrogates, which stand for bytes in file names that are not UTF-8.
    return mask_secrets(text).encode(errors="backslashreplace").decode()


def breakable(text: str) -> Markup:
    """Let browsers break a name or path only after separators (see BREAK)."""
    escaped = str(escape(mask_secrets(text)))
    return Markup(BREAK.sub(r"\1<wbr>", escaped))


def asset(name: str) -> str:
    """Read a file in assets/."""
    return (ASSETS / name).read_text(encoding="utf-8")
