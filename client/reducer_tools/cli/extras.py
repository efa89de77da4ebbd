"""Optional dependencies: whether they are installed, and how to install them."""

from __future__ import annotations

import importlib.util

import click


def need(who: str, extra: str, **packages: str) -> None:
    """End with exit status 1 where one of the ``packages``, by the name of its module, is missing.

    ``who`` needs them, and the optional dependencies ``extra`` of the project have them.
    """
    missing = [name for module, name in packages.items() if not importlib.util.find_spec(module)]
    if missing:
        install = f"pip install 'open-reduction-server[{extra}]'"
        raise click.ClickException(f"{who} needs {', '.join(missing)}: {install}")
