"""The Jinja environment of chat templates: Hugging Face's conventions inside a sandbox with bounds.

A template comes with a model file from the internet. It sees only what it is given, and it may neither run nor grow
without end: loops and calls draw on one budget, values and output have a largest size.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, LoopControlExtension
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

from kvist.tokenization import template_bounds as bounds

# Filters that make much out of little, and that no chat template needs.
_REMOVED_FILTERS = ("batch", "center", "filesizeformat", "format", "pprint", "random", "slice", "urlize", "wordwrap")
_MAX_INDENT = 32


class _GenerationExtension(Extension):
    """`{% generation %} ... {% endgeneration %}` marks what the assistant wrote, for training; no effect here."""

    tags = {"generation"}  # noqa: RUF012 - the name and type that Jinja prescribes

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _to_json(value: Any, ensure_ascii: bool = False, indent: int | None = None, **options: Any) -> str:  # noqa: FBT001, FBT002
    """Write JSON as Hugging Face's `tojson` does: no escapes for HTML, other alphabets as they are."""
    if isinstance(indent, int) and indent > _MAX_INDENT:
        raise SecurityError(f"tojson: indent {indent} is too wide")
    bounds.measure(value)
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **options)


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


class ChatTemplateEnvironment(ImmutableSandboxedEnvironment):
    """Compiles chat templates. `now` tells `strftime_now` the local time."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self, now: Callable[[], datetime]) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            finalize=bounds.measured,
            extensions=[_GenerationExtension, LoopControlExtension],
        )
        for name in _REMOVED_FILTERS:
            self.filters.pop(name)
        self.filters |= {name: bounds.bounded_filter(name, self.filters[name]) for name in bounds.TEXT_FILTERS}
        self.filters |= {"tojson": _to_json, "counted": bounds.counted, "checked_size": bounds.checked_size}
        self.filters |= {"measured": bounds.measured}
        self.globals.pop("lipsum")
        self.globals |= {
            "raise_exception": _raise_exception,
            "strftime_now": lambda layout: now().strftime(layout),
        }

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        """Parse, then put a counter around what each loop runs over and checks around each concatenation."""
        template = super()._parse(source, name, filename)
        for loop in list(template.find_all(nodes.For)):
            if loop.recursive:
                raise jinja2.TemplateSyntaxError("recursive loops are not allowed", loop.lineno, name, filename)
            loop.iter = self._filtered(loop.iter, "counted")
        for parent in list(template.find_all(nodes.Node)):
            self._check_concatenations(parent)
        return template

    def _check_concatenations(self, parent: nodes.Node) -> None:
        if isinstance(parent, nodes.Concat):
            parent.nodes = [
                part if isinstance(part, nodes.Const) else self._filtered(part, "measured") for part in parent.nodes
            ]
        for field, value in parent.iter_fields():
            if isinstance(value, nodes.Concat):
                setattr(parent, field, self._filtered(value, "checked_size"))
            elif isinstance(value, list):
                value[:] = [
                    self._filtered(item, "checked_size") if isinstance(item, nodes.Concat) else item for item in value
                ]

    def _filtered(self, expression: nodes.Node, name: str) -> nodes.Filter:
        wrapped = nodes.Filter(expression, name, [], [], None, None, lineno=expression.lineno)
        wrapped.set_environment(self)
        return wrapped

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        bounds.check_operation(operator, left, right)
        return bounds.checked_size(super().call_binop(context, operator, left, right))

    def call(self, context: Context, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        bounds.spend_step()
        owner = getattr(obj, "__self__", None)
        if isinstance(owner, str):
            bounds.check_text_call(obj.__name__, owner, args, kwargs)
            if obj.__name__ == "join" and args:
                bounds.check_join(owner, args[0])
        return bounds.checked_size(super().call(context, obj, *args, **kwargs))

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        wrapped = super().wrap_str_format(value)
        if wrapped is not None:
            bounds.check_format(value.__self__)
        return wrapped


def render_bounded(template: jinja2.Template, variables: dict[str, Any]) -> str:
    """Render within the budget. Raises what the template raises; SecurityError if it wants too much."""
    bounds.start_budget()
    pieces, size = [], 0
    for piece in template.generate(variables):
        pieces.append(piece)
        size += len(piece)
        if size > bounds.MAX_CHARACTERS:
            raise SecurityError(f"the rendered prompt is longer than {bounds.MAX_CHARACTERS} characters")
    return "".join(pieces)
