"""Reads untrusted files of JSON, YAML or TOML.

Refused are
 - files above 256 KiB, because no specification is that large,
 - names that occur twice in a mapping, because a parser would silently drop one,
 - aliases of YAML, which can expand a small file to a huge document,
 - tags of YAML, which can run code.
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
    """A file is not a valid document. The text has the position and the cause."""


def read_document(file: BinaryIO) -> object:
    """Read a JSON or YAML file as plain data. Ends with exit status 2 if the file is invalid."""
    return _read(file, parse_document)


def read_toml(file: BinaryIO) -> dict[str, Any]:
    """Read a TOML file. Ends with exit status 2 if the file is invalid."""
    found: dict[str, Any] = _read(file, tomllib.loads)
    return found


def parse_document(text: str) -> object:
    """Parse JSON if the text begins with a brace or a bracket, else YAML. Raises DocumentError.

    Lines of JSON that begin with // are comments, because Vertex AI's examples have such lines.
    """
    lines = ["" if line.lstrip().startswith("//") else line for line in text.split("\n")]
    plain = "\n".join(lines)
    if plain.lstrip().startswith(("{", "[")):
        return _parse_json(plain)
    return _parse_yaml(text)


def name_file(file: BinaryIO) -> str:
    return str(getattr(file, "name", "<stdin>"))


def write_yaml(*documents: object, comments: Sequence[str] = (), width: int = 80) -> str:
    """The YAML text of the documents, under ``comments``. Mappings keep their order.

    `parse_document` can read each document. ``width`` is in characters.
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
            hint = "; replace ... by a value"
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
    except (ValueError, OverflowError) as error:  # too many digits, or no code point of Unicode
        raise DocumentError(f"expected YAML, got an error: {error}") from None
    except RecursionError:
        raise DocumentError("expected fewer levels of nesting") from None


def _describe_yaml(error: Exception) -> str:
    """Position and problem of a YAML error in one line."""
    mark = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem", None) or str(error)
    where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
    return where + " ".join(str(problem).split())
