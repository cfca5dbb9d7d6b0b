"""The Jinja environment of chat templates: Hugging Face's conventions inside a sandbox with bounds.

A template comes with a model file from the internet. It sees only what it is given, and it may neither run nor grow
without end: loops and calls draw on one budget, values and output have a largest size.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, LoopControlExtension
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

MAX_STEPS = 100_000  # loop turns and calls of one rendering, some seconds at worst; a message takes about 10
MAX_CHARACTERS = 32 << 20  # of any value and of the output
_MAX_WIDTH = 10_000  # of a padded or repeated field
_MAX_INTEGER_BITS = 4096
_BUDGET = "__budget"
_WIDE_FIELD = re.compile(r"\d{5}|%[^%a-zA-Z]*\*|\{[^{}]*\{")
# Filters that make much out of little, and that no chat template needs.
_REMOVED_FILTERS = ("batch", "center", "filesizeformat", "format", "random", "slice", "urlize", "wordwrap", "xmlattr")


class StepBudget:
    """Counts down the work that one rendering may still do."""

    __slots__ = ("left",)

    def __init__(self, steps: int = MAX_STEPS) -> None:
        self.left = steps

    def spend(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise SecurityError(f"the template takes more than {MAX_STEPS} loop turns and calls")


class _GenerationExtension(Extension):
    """`{% generation %} ... {% endgeneration %}` marks what the assistant wrote, for training; no effect here."""

    tags = {"generation"}  # noqa: RUF012 - the name and type that Jinja prescribes

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


@jinja2.pass_context
def _counted(context: Context, iterable: Iterable[Any]) -> Iterator[Any]:
    budget: StepBudget = context[_BUDGET]
    for item in iterable:
        budget.spend()
        yield item


def _checked_size(value: Any) -> Any:
    if isinstance(value, (str, list, tuple)) and len(value) > MAX_CHARACTERS:
        raise SecurityError(f"the template makes a value longer than {MAX_CHARACTERS}")
    if isinstance(value, int) and value.bit_length() > _MAX_INTEGER_BITS:
        raise SecurityError("the template makes a huge number")
    return value


@jinja2.pass_context
def _to_json(
    context: Context,
    value: Any,
    ensure_ascii: bool = False,  # noqa: FBT001, FBT002 - the signature that templates know
    indent: int | None = None,
    **options: Any,
) -> str:
    """Write JSON as Hugging Face's `tojson` does: no escapes for HTML, other alphabets as they are."""
    if isinstance(indent, int) and indent > _MAX_WIDTH:
        raise SecurityError(f"tojson: indent {indent} is too wide")
    _measure(value, context[_BUDGET], 0)
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **options)


def _measure(value: Any, budget: StepBudget, size: int) -> int:
    """Walk `value` as JSON would write it: one that holds another many times can be exponentially long."""
    budget.spend()
    if isinstance(value, str):
        size += len(value)
    elif isinstance(value, dict):
        for item in (*value, *value.values()):
            size = _measure(item, budget, size)
    elif isinstance(value, (list, tuple)):
        for item in value:
            size = _measure(item, budget, size)
    if size > MAX_CHARACTERS:
        raise SecurityError(f"tojson: longer than {MAX_CHARACTERS} characters")
    return size


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


class ChatTemplateEnvironment(ImmutableSandboxedEnvironment):
    """Compiles chat templates. `now` tells `strftime_now` the local time."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self, now: Callable[[], datetime]) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationExtension, LoopControlExtension])
        for name in _REMOVED_FILTERS:
            self.filters.pop(name)
        self.globals.pop("lipsum")
        self.filters |= {"tojson": _to_json, "counted": _counted, "checked_size": _checked_size}
        self.globals |= {
            "raise_exception": _raise_exception,
            "strftime_now": lambda layout: now().strftime(layout),
        }

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        """Parse, then put a counter around what each loop runs over and a check around each concatenation."""
        template = super()._parse(source, name, filename)
        for loop in list(template.find_all(nodes.For)):
            if loop.recursive:
                raise jinja2.TemplateSyntaxError("recursive loops are not allowed", loop.lineno, name, filename)
            loop.iter = self._filtered(loop.iter, "counted")
        for parent in list(template.find_all(nodes.Node)):
            self._check_concatenations(parent)
        return template

    def _check_concatenations(self, parent: nodes.Node) -> None:
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
        if operator == "*" and (hasattr(left, "__len__") or hasattr(right, "__len__")):
            size = (len(left) * right) if hasattr(left, "__len__") else (left * len(right))
            if size > MAX_CHARACTERS:
                raise SecurityError(f"the template makes a value longer than {MAX_CHARACTERS}")
        elif operator == "**" and (not isinstance(right, (int, float)) or abs(right) > _MAX_INTEGER_BITS):
            raise SecurityError("the template raises to a huge power")
        elif operator == "%" and isinstance(left, str) and _WIDE_FIELD.search(left):
            raise SecurityError("the template formats a very wide field")
        return _checked_size(super().call_binop(context, operator, left, right))

    def call(self, context: Context, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        context[_BUDGET].spend()
        owner = getattr(obj, "__self__", None)
        if isinstance(owner, str):
            wide = any(isinstance(value, int) and value > _MAX_WIDTH for value in (*args, *kwargs.values()))
            name = getattr(obj, "__name__", "")
            if wide and name not in ("split", "rsplit"):
                raise SecurityError(f"the template calls {name} for a very wide field")
        return _checked_size(super().call(context, obj, *args, **kwargs))

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        wrapped = super().wrap_str_format(value)
        if wrapped is not None and _WIDE_FIELD.search(value.__self__):
            raise SecurityError("the template formats a very wide field")
        return wrapped


def render_bounded(template: jinja2.Template, variables: dict[str, Any]) -> str:
    """Render within the budget. Raises what the template raises; SecurityError if it wants too much."""
    pieces, size = [], 0
    for piece in template.generate(variables | {_BUDGET: StepBudget()}):
        pieces.append(piece)
        size += len(piece)
        if size > MAX_CHARACTERS:
            raise SecurityError(f"the rendered prompt is longer than {MAX_CHARACTERS} characters")
    return "".join(pieces)
