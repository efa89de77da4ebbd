"""Reads a file of JSON, YAML or TOML that a stranger may have written.

A file of more than 256 KiB, a name that occurs twice, an alias or a tag of YAML is refused: the
first because no specification is that large, the second because one of both would be lost, the
others because they can make a small file huge or run code.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Sequence
from typing import Any, BinaryIO

import click

from reducer_tools.cli.extras import need

_MOST_BYTES = 256 << 10


class DocumentError(ValueError):
    """A file is no such document: says where and why."""


def read_document(file: BinaryIO) -> object:
    """What a JSON or YAML file holds, as plain data; ends with exit status 2 on anything else."""
    return _read(file, parse_document)


def read_toml(file: BinaryIO) -> dict[str, Any]:
    """What a TOML file holds; ends with exit status 2 on anything else."""
    found: dict[str, Any] = _read(file, tomllib.loads)
    return found


def parse_document(text: str) -> object:
    """JSON where the text begins with a brace or a bracket, else YAML. Raises DocumentError.

    Lines of JSON that begin with // are comments: Vertex AI's own examples have them.
    """
    lines = ["" if line.lstrip().startswith("//") else line for line in text.split("\n")]
    plain = "\n".join(lines)
    if plain.lstrip().startswith(("{", "[")):
        return _parse_json(plain)
    return _parse_yaml(text)


def name_file(file: BinaryIO) -> str:
    return str(getattr(file, "name", "<stdin>"))


def write_yaml(*documents: object, comments: Sequence[str] = (), width: int = 80) -> str:
    """Documents of one file under ``comments``, their names in the order of the documents.

    `parse_document` reads each of them again. ``width`` is in characters.
    """
    need("YAML", "tools", yaml="PyYAML")
    import yaml

    from reducer_tools.cli.strict_yaml import StrictDumper

    head = "".join(f"# {line}\n" for line in comments)
    return head + "---\n".join(
        yaml.dump(document, Dumper=StrictDumper, sort_keys=False, width=width)
        for document in documents
    )


def _read(file: BinaryIO, parse: Any) -> Any:
    try:
        data = file.read(_MOST_BYTES + 1)
        if len(data) > _MOST_BYTES:
            raise DocumentError(f"expected at most {_MOST_BYTES:,} bytes, got more")
        return parse(data.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise click.UsageError(f"{name_file(file)}: expected UTF-8, got {error.reason}") from None
    except (ValueError, RecursionError, OSError) as error:
        raise click.UsageError(f"{name_file(file)}: {error}") from None


def _parse_json(text: str) -> object:
    try:
        return json.loads(text, object_pairs_hook=_refuse_twice, parse_constant=_refuse_constant)
    except json.JSONDecodeError as error:
        hint = ""
        if "..." in text.split("\n")[error.lineno - 1]:
            hint = "; fill in what ... stands for"
        where = f"line {error.lineno}, column {error.colno}"
        raise DocumentError(f"{where}: expected JSON, got an error: {error.msg}{hint}") from None
    except RecursionError:
        raise DocumentError("expected fewer levels of nesting") from None


def _refuse_twice(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise DocumentError(f"expected each name once, got {twice!r} twice in one mapping")
    return found


def _refuse_constant(name: str) -> object:
    raise DocumentError(f"expected JSON, got {name}")


def _parse_yaml(text: str) -> object:
    need("YAML", "tools", yaml="PyYAML")
    import yaml

    from reducer_tools.cli.strict_yaml import StrictLoader

    try:
        return yaml.load(text, StrictLoader)
    except yaml.YAMLError as error:
        raise DocumentError(_describe_yaml(error)) from None
    except (ValueError, OverflowError) as error:  # too many digits, or a sign beyond Unicode
        raise DocumentError(f"expected YAML, got an error: {error}") from None
    except RecursionError:
        raise DocumentError("expected fewer levels of nesting") from None


def _describe_yaml(error: Exception) -> str:
    """In one line: where and what."""
    mark = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem", None) or str(error)
    where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
    return where + " ".join(str(problem).split())
