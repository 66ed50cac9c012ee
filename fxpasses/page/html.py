"""A page as HTML that needs nothing from outside: for notebooks, and as a file."""

from typing import Final

from fxpasses.page.outline import Page

# Colours are laid over those of whatever page it stands in, light or dark.
_FRAGMENT: Final = """\
{%- macro line(one) %}<div class="{{ one.tone }}">{{ one.text }}</div>
{%- if one.below %}<div class="below">{% for more in one.below %}{{ line(more) }}{% endfor %}</div>
{%- endif %}{% endmacro -%}
<div class="fxpasses">
<style>
.fxpasses { font: 13px/1.45 system-ui, sans-serif; max-width: 78em; }
.fxpasses h4 { margin: 0 0 .4em; font-size: 15px; }
.fxpasses table { border-collapse: collapse; margin: 0; font-size: inherit; }
.fxpasses td, .fxpasses th { text-align: left; vertical-align: top; padding: .1em 1.2em .1em 0;
  background: none; font-variant-numeric: tabular-nums; border: 0; }
.fxpasses > table > tbody > tr > * { border-top: 1px solid rgba(128, 128, 128, .25);
  padding-top: .3em; padding-bottom: .3em; }
.fxpasses .number { text-align: right; }
.fxpasses .inner th { font-weight: normal; opacity: .65; }
.fxpasses .inner td { white-space: nowrap; }
.fxpasses .below { padding-left: 1.2em; }
.fxpasses .quiet { opacity: .65; } .fxpasses .good { color: #15803d; }
.fxpasses .noted { color: #b45309; } .fxpasses .bad { color: #dc2626; font-weight: 600; }
.fxpasses .advice { color: #0e7490; } .fxpasses .plain { color: inherit; }
</style>
<h4>{{ page.title.text }}</h4>
<table>
{%- for section in page.sections %}
<tr><th>{{ section.label }}</th><td>
{%- for block in section.blocks %}
{%- if block.rows is defined %}
<table class="inner"><tr>
{%- for column in block.columns %}<th{% if column.is_number %} class="number"{% endif %}>
{{- column.name }}</th>{% endfor %}</tr>
{%- for row in block.rows %}
<tr class="{{ row.tone }}">{% for cell in row.cells %}<td
{%- if block.columns[loop.index0].is_number %} class="number"{% endif %}>{{ cell }}</td>
{%- endfor %}</tr>
{%- endfor %}
</table>
{%- else %}{{ line(block) }}{% endif %}
{%- endfor %}
</td></tr>
{%- endfor %}
</table>
</div>"""

_DOCUMENT: Final = """\
<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>{{ page.title.text }}</title>
<meta name="viewport" content="width=device-width"><meta name="color-scheme" content="light dark">
</head><body>
%s
</body></html>
"""


def as_html(page: Page) -> str:
    """A fragment, for a page that is there already."""
    return _rendered(_FRAGMENT, page)


def as_document(page: Page) -> str:
    return _rendered(_DOCUMENT % _FRAGMENT, page)


def _rendered(template: str, page: Page) -> str:
    from jinja2 import Environment, StrictUndefined  # noqa: PLC0415  loaded only where it is shown

    environment = Environment(
        autoescape=True, undefined=StrictUndefined, keep_trailing_newline=True
    )
    return environment.from_string(template).render(page=page)
