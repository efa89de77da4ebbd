"""Optional dependencies: whether they are installed, and how to install them."""

from __future__ import annotations

import importlib.util

import click


def need(who: str, extra: str, **packages: str) -> None:
    """End with exit status 1 if one of the packages is missing.

    Args:
        who: the command or option that needs the packages, for the error text.
        extra: the project's optional dependencies (``[extra]``) that contain the packages.
        packages: maps the name of each module to the name of its package.
    """
    missing = [name for module, name in packages.items() if not importlib.util.find_spec(module)]
    if missing:
        install = f"pip install '.[{extra}]' in a checkout, or pip install 'WHEEL[{extra}]'"
        raise click.ClickException(f"{who} needs {', '.join(missing)}: {install}")
