"""The deployment file: TOML text in, frozen values out, every problem told at once.

Each problem names the key path (`pool[1].tensor_parallel`, counted from 0), the value and the remedy. Defaults
that depend on other keys are filled in here, so that nobody downstream has to know which keys were written.
Pure: whether the model's folder exists is for `exahpc up` to find out.
"""

from __future__ import annotations

import tomllib
import types
import typing
from typing import Any

import msgspec

from exahpc.deployment.frozen import Frozen
from exahpc.deployment.problems import Problems
from exahpc.deployment.rules import bounds_of, check
from exahpc.deployment.spec import Deployment
from exahpc.errors import DeploymentError

_WORDS = {str: "a string", int: "a whole number", float: "a number", bool: "true or false"}


def load(text: str, source: str = "deployment.toml") -> Deployment:
    """Parse a deployment file. source: its name, for messages.

    Raises DeploymentError that lists all problems.
    """
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise DeploymentError(f"{source}: not valid TOML: {error}") from None
    data = _settled(data)
    problems = Problems(source)
    deployment: Deployment = _struct(Deployment, data, "", problems)
    check(deployment, problems)
    problems.raise_if_any()
    return deployment


def _settled(data: dict[str, Any]) -> dict[str, Any]:
    """Fill in the defaults of the local launcher: one machine, so loopback and no head job."""
    launcher, head = data.get("launcher"), data.get("head", {})
    if not (isinstance(launcher, dict) and isinstance(head, dict) and launcher.get("kind") == "local"):
        return data
    return {**data, "head": {"placement": "local", "bind": "127.0.0.1", **head}}


def _struct(kind: type[Any], data: dict[str, Any], path: str, problems: Problems) -> Any:
    """One table as a `kind`; a value that cannot be used is reported and replaced, so that parsing goes on."""
    dot = f"{path}." if path else ""
    fields = {field.encode_name: field for field in msgspec.structs.fields(kind)}
    for key in data:
        if key not in fields:
            problems.unknown(f"{dot}{key}", key, fields)
    values: dict[str, Any] = {}
    for name, field in fields.items():
        if name in data:
            found, value = _value(field.type, data[name], f"{dot}{name}", problems)
            if found:
                values[name] = value
                _bounded(kind, name, value, f"{dot}{name}", problems)
                continue
        elif field.required:
            problems.missing(f"{dot}{name}", f"it needs {_wanted(field.type)}")
        if field.required:
            values[name] = _stand_in(field.type, f"{dot}{name}", problems)
    return kind(**values)


def _bounded(kind: type[Any], name: str, value: Any, path: str, problems: Problems) -> None:
    low, high = bounds_of(kind, name)
    if isinstance(value, int | float) and not isinstance(value, bool):
        if low is not None and not value >= low:
            problems.add(path, value, f"must be at least {low:g}")
        elif high is not None and not value <= high:
            problems.add(path, value, f"must be at most {high:g}")


def _value(kind: Any, value: Any, path: str, problems: Problems) -> tuple[bool, Any]:
    """(usable, value) of one key."""
    if _is_struct(kind):
        if isinstance(value, dict):
            return True, _struct(kind, value, path, problems)
        problems.add(path, value, f"write it as a table: [{path}]")
        return False, None
    item = _tuple_item(kind)
    if item is not None and _is_struct(item):
        if isinstance(value, list) and all(isinstance(entry, dict) for entry in value):
            return True, tuple(_struct(item, e, f"{path}[{i}]", problems) for i, e in enumerate(value))
        problems.add(path, value, f"write it as an array of tables: [[{path}]]")
        return False, None
    try:
        return True, msgspec.convert(value, kind, strict=True)
    except msgspec.ValidationError:
        problems.add(path, value, f"must be {_wanted(kind)}")
        return False, None


def _is_struct(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Frozen)


def _tuple_item(kind: Any) -> Any:
    """T of tuple[T, ...], else None."""
    return typing.get_args(kind)[0] if typing.get_origin(kind) is tuple else None


def _stand_in(kind: Any, path: str, problems: Problems) -> Any:
    """Something of the right type in the place of a required key that is missing or unusable."""
    if _is_struct(kind):
        return _struct(kind, {}, path, Problems(""))
    return () if typing.get_origin(kind) is tuple else ""


def _wanted(kind: Any) -> str:
    """What a key takes, in words."""
    if _is_struct(kind):
        return "a table"
    item = _tuple_item(kind)
    if item is not None:
        if item is int:
            return "a list of whole numbers, for instance [0, 1]"
        return "at least one table" if _is_struct(item) else 'a list of strings, for instance ["a", "b"]'
    if typing.get_origin(kind) is typing.Literal:
        return "one of " + ", ".join(f'"{choice}"' for choice in typing.get_args(kind))
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        return " or ".join(_wanted(choice) for choice in typing.get_args(kind) if choice is not type(None))
    return _WORDS.get(kind, str(kind))
