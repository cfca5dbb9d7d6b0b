"""How much work and space one rendering of a chat template may take, and the checks that hold it to that."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from typing import Any

from jinja2.exceptions import SecurityError

MAX_STEPS = 100_000  # loop turns and calls of one rendering, some seconds at worst; a message takes about 10
MAX_CHARACTERS = 32 << 20  # of any value and of the output
_MAX_WIDTH = 10_000  # of a padded or repeated field
_MAX_INTEGER_BITS = 4096
_WIDE_FIELD = re.compile(r"\d{5}|%[^%a-zA-Z]*\*|\{[^{}]*\{")

# Filters that write any value as text, and may make much of little.
TEXT_FILTERS = frozenset(
    {"capitalize", "e", "escape", "forceescape", "indent", "join", "lower", "replace", "string", "striptags", "title"}
    | {"trim", "truncate", "upper", "urlencode", "wordcount"}
)

_steps_left: ContextVar[list[int]] = ContextVar("steps_left")  # one number, shared by all that one rendering calls


def start_budget() -> None:
    """Give the rendering that now begins in this context all its steps."""
    _steps_left.set([MAX_STEPS])


def spend_step() -> None:
    """Count one loop turn or call. Raises SecurityError when there have been too many."""
    left = _steps_left.get()
    left[0] -= 1
    if left[0] < 0:
        raise SecurityError(f"the template takes more than {MAX_STEPS} loop turns and calls")


def counted(iterable: Iterable[Any]) -> Iterator[Any]:
    """Yield from `iterable`, a step each."""
    for item in iterable:
        spend_step()
        yield item


def checked_size(value: Any) -> Any:
    """Return `value` unless it is too long or too large a number."""
    if isinstance(value, (str, list, tuple)):
        _check_characters(len(value))
    if isinstance(value, int) and value.bit_length() > _MAX_INTEGER_BITS:
        raise SecurityError("the template makes a huge number")
    return value


def measured(value: Any) -> Any:
    """Return `value` unless it is too long when written as text."""
    if isinstance(value, (dict, list, tuple)):
        measure(value)
    return value


def measure(value: Any, size: int = 0) -> int:
    """Return `size` plus the characters of all texts in `value`, met as often as writing it would meet them.

    A list that holds another twice, which holds another twice ..., is exponentially long.
    """
    spend_step()
    if isinstance(value, str):
        size += len(value)
    elif isinstance(value, dict):
        for item in (*value, *value.values()):
            size = measure(item, size)
    elif isinstance(value, (list, tuple)):
        for item in value:
            size = measure(item, size)
    _check_characters(size)
    return size


def check_operation(operator: str, left: Any, right: Any) -> None:
    """Refuse an arithmetic operation whose result would be too large, before it is made."""
    if operator == "*" and (hasattr(left, "__len__") or hasattr(right, "__len__")):
        _check_characters((len(left) * right) if hasattr(left, "__len__") else (left * len(right)))
    elif operator == "**" and (not isinstance(right, (int, float)) or abs(right) > _MAX_INTEGER_BITS):
        raise SecurityError("the template raises to a huge power")
    elif operator == "%" and isinstance(left, str):
        check_format(left)
        measured(right)


def check_format(layout: str) -> None:
    """Refuse a format string with fields of huge or computed width."""
    if _WIDE_FIELD.search(layout):
        raise SecurityError("the template formats a very wide field")


def check_text_call(name: str, text: Any, arguments: Sequence[Any], options: Mapping[str, Any]) -> None:
    """Refuse the method or filter `name` of `text` if its result could be too long."""
    for argument in (*arguments, *options.values()):
        measured(argument)
        if isinstance(argument, int) and argument > _MAX_WIDTH and name not in ("split", "rsplit", "truncate"):
            raise SecurityError(f"the template calls {name} for a very wide field")
    if name == "replace" and len(arguments) > 1:
        _check_characters(len(str(text)) + str(text).count(str(arguments[0])) * len(str(arguments[1])))
    elif name == "indent":
        width = arguments[0] if arguments else options.get("width", 4)
        _check_characters(
            len(str(text)) + str(text).count("\n") * (width if isinstance(width, int) else len(str(width)))
        )


def check_join(separator: Any, items: Any) -> None:
    """Refuse to join `items` if the result would be too long."""
    if isinstance(items, Sequence):
        _check_characters(measure(list(items)) + len(items) * len(str(separator)))


def bounded_filter(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the filter `function` with its result checked before it is made and after."""
    value_at = 1 if hasattr(function, "jinja_pass_arg") else 0  # such filters are handed the context first

    @functools.wraps(function)  # keeps the attribute that says so
    def bounded(*arguments: Any, **options: Any) -> Any:
        value, others = arguments[value_at], arguments[value_at + 1 :]
        if name == "join":
            value = list(counted(value))
            check_join(others[0] if others else options.get("d", ""), value)
        else:
            measured(value)
        check_text_call(name, value, others, options)
        return checked_size(function(*arguments[:value_at], value, *others, **options))

    return bounded


def _check_characters(size: int) -> None:
    if size > MAX_CHARACTERS:
        raise SecurityError(f"the template makes a text longer than {MAX_CHARACTERS} characters")
