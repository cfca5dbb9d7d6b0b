"""Turns configuration fields into command line flags, and configurations back into a command line."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NoReturn, TypeVar

from kvist.config.fields import ConfigField, Value, config_fields
from kvist.config.foreign_flags import add_foreign_flags
from kvist.config.option import Option
from kvist.config.speculative_json import parse_speculation
from kvist.core.errors import ConfigError
from kvist.core.suggest import did_you_mean

N = TypeVar("N", int, float)
Sections = Mapping[str, type]  # section name -> dataclass


class ArgumentParser(argparse.ArgumentParser):
    """argparse that raises ConfigError instead of leaving, allows no abbreviations and suggests the nearest flag."""

    def __init__(self, **options: Any) -> None:  # Any: argparse's own constructor arguments
        super().__init__(allow_abbrev=False, **options)

    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{message} ({self.prog} --help lists all options)")

    def parse_known(self, words: Sequence[str]) -> argparse.Namespace:
        """Parse; raise ConfigError for anything that is left over."""
        namespace, extras = self.parse_known_args(list(words))
        flags = [word for word in extras if word.startswith("-")]
        if flags:
            name = flags[0].split("=")[0]
            raise ConfigError(f"unknown option {name}.{did_you_mean(name, self._option_string_actions)}")
        if extras:
            raise ConfigError(f"unexpected argument {extras[0]!r} ({self.prog} --help shows how it is called)")
        return namespace


class _StoreField(argparse.Action):
    """Parses a value by its field; a repeated field gathers the values of all its flags."""

    def __init__(self, *, field: ConfigField, **options: Any) -> None:  # Any: handed on to argparse
        super().__init__(**options)
        self._field = field

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option_string: Any = None
    ) -> None:
        value = self._field.parse(values, label=option_string)
        if self._field.is_repeated:
            value = (*getattr(namespace, self.dest, ()), *value)
        setattr(namespace, self.dest, value)


class _StoreSpeculation(argparse.Action):
    """Takes one JSON object in place of the flags of the speculation section."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option_string: Any = None
    ) -> None:
        for name, value in parse_speculation(str(values), source=str(option_string)).items():
            setattr(namespace, f"speculation.{name}", value)


def whole_number(label: str, *, low: int) -> Callable[[str], int]:
    """An argparse type for options that are no configuration fields. Raises ConfigError, naming `label`."""
    return _plain(label, int, low=low)


def number(label: str, *, low: float) -> Callable[[str], float]:
    """As `whole_number`, for any finite number."""
    return _plain(label, float, low=low)


def destination(field: ConfigField) -> str:
    """Where a field's value stands in the parsed namespace; absent if the flag was not given."""
    return f"{field.section}.{field.name}"


def add_config_arguments(parser: argparse.ArgumentParser, sections: Sections) -> None:
    """Add one flag (and its aliases) for every field of every section, and refusals for flags of other engines."""
    own: set[str] = set()
    for section, config_class in sections.items():
        group = parser.add_argument_group(f"{section} options")
        for field in config_fields(config_class, section):
            _add_field(group, field)
            own.update((field.flag, *field.option.aliases, *field.option.off_aliases))
    if "speculation" in sections:
        parser.add_argument(
            "--speculative-config",
            action=_StoreSpeculation,
            metavar="JSON",
            default=argparse.SUPPRESS,
            help='the speculation options as one object, such as {"method": "ngram", "num_speculative_tokens": 5}',
        )
    add_foreign_flags(parser, own)


def given_values(namespace: argparse.Namespace, sections: Sections) -> dict[str, dict[str, Value]]:
    """Section -> name -> value of the flags that were really given."""
    return {
        section: {
            field.name: getattr(namespace, destination(field))
            for field in config_fields(config_class, section)
            if hasattr(namespace, destination(field))
        }
        for section, config_class in sections.items()
    }


def to_command_line(configs: Mapping[str, object]) -> list[str]:
    """The flags that give `configs` (section -> dataclass instance) from defaults. Inverse of parsing.

    Raises ConfigError for a list element that a comma-separated flag cannot hold.
    """
    return [word for field, value in changed_fields(configs) for word in _flag_words(field, value)]


def changed_fields(configs: Mapping[str, object]) -> Iterable[tuple[ConfigField, Value]]:
    """Each field that is not at its default, with its value."""
    for section, config in configs.items():
        for field in config_fields(type(config), section):
            value = getattr(config, field.name)
            if value != field.default:
                yield field, value


def _plain(label: str, kind: type[N], *, low: float) -> Callable[[str], N]:
    field = ConfigField(
        section="",
        name=label,
        kind=kind,
        is_optional=False,
        is_repeated=False,
        default=None,
        option=Option(help="", low=low),
    )

    def parse(text: str) -> N:
        value: N = field.parse(text, label=label)
        return value

    return parse


def _add_field(group: Any, field: ConfigField) -> None:  # Any: argparse's group type is private
    spelling, option = (field.flag, *field.option.aliases), field.option
    dest, text = destination(field), _help(field).replace("%", "%%")
    if field.kind is bool:
        group.add_argument(
            *spelling, dest=dest, action=argparse.BooleanOptionalAction, default=argparse.SUPPRESS, help=text
        )
        if option.off_aliases:
            group.add_argument(
                *option.off_aliases,
                dest=dest,
                action="store_const",
                const=False,
                default=argparse.SUPPRESS,
                help=argparse.SUPPRESS,
            )
        return
    metavar = "{" + ",".join(option.choices) + "}" if option.choices else (option.unit or field.kind.__name__).upper()
    group.add_argument(
        *spelling, dest=dest, action=_StoreField, field=field, default=argparse.SUPPRESS, metavar=metavar, help=text
    )


def _help(field: ConfigField) -> str:
    default = field.default
    if field.kind is bool:
        return f"{field.option.help} (default: {'on' if default else 'off'})"
    if default is None or default == ():
        return field.option.help
    return f"{field.option.help} (default: {default})"


def _flag_words(field: ConfigField, value: Value) -> list[str]:
    if field.kind is bool:
        return [field.flag if value else "--no-" + field.flag.removeprefix("--")]
    if not field.is_repeated:
        return [f"{field.flag}={field.to_text(value)}"]
    for part in value:
        if "," in part or part != part.strip() or not part:
            raise ConfigError(f"{field.flag} cannot hold {part!r} on a command line; put it into a --config file")
    return [f"{field.flag}={part}" for part in value]
