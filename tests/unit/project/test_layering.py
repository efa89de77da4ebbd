"""Who may import whom, held by a walk over every import (also those inside functions)."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PACKAGES = {"reducer": ROOT / "reducer", "reducer_client": ROOT / "client" / "reducer_client"}

# The first prefix of a module's name that matches gives what it may import beside the standard
# library. A name stands for itself and all below it.
ALLOWED = {
    "reducer.wire": {"reducer.wire", "reducer.errors", "msgpack"},
    "reducer.errors": {"reducer.wire.codes"},
    "reducer.core": {"reducer.core", "reducer.wire", "reducer.errors"},
    "reducer.planner": {"reducer.planner", "reducer.units", "matplotlib"},
    "reducer.status": {"reducer.status", "rich"},
    "reducer.nccl": {
        "reducer.nccl",
        "reducer.cluster",
        "reducer.status",
        "reducer.children",
        "numpy",
    },
    "reducer.cluster": {"reducer.cluster", "reducer.wire.codes"},
    "reducer.k8s": {"reducer.k8s", "reducer.units", "reducer.__version__", "yaml"},
    "reducer.kernels": {"reducer.kernels", "reducer.wire.codes", "numpy", "google_crc32c"}
    | {"typing_extensions"},  # for the type checker alone
}
# What no module of the prefix may import.
FORBIDDEN = {
    "reducer.wire": {"asyncio", "socket", "threading", "time", "random", "os", "subprocess"},
    "reducer.core": {"asyncio", "socket", "threading", "time", "random", "os", "subprocess"},
    # Files, standard input and the clock belong to the command line; a figure is made, not written.
    "reducer.planner": {"asyncio", "socket", "threading", "time", "random", "os", "subprocess"}
    | {"io", "pathlib", "importlib", "sys", "shutil", "tempfile", "urllib", "http"},
    "reducer.server": {"reducer.cli", "reducer_client"},
    "reducer.bench": {"reducer.cli", "reducer.server"},
    "reducer.doctor": {"reducer.cli", "reducer.server"},
    "reducer": {"client", "torch"},
    "reducer_client": {"reducer.server", "reducer.core", "client"},
}
ENVIRONMENT_READERS = {"reducer.config", "reducer.nccl.config", "reducer_client.config"}
ENVIRONMENT_READERS |= {"reducer_client.horovod.config"}
CLI_IMPORTERS = ("reducer.cli", "reducer.__main__", "reducer_client.demo")
# Where a picture is drawn; nothing else of the planner needs matplotlib to be there.
MATPLOTLIB_IMPORTERS = ("reducer.planner.figure", "reducer_client.demo")
FILE_FREE = ("reducer.wire", "reducer.core", "reducer.planner")
TORCH_IMPORTERS = ("reducer_client.torch", "reducer_client.horovod.torch", "reducer_client.demo")
OTHER_IMPORTERS = {
    "jax": ("reducer_client.jax",),
    "keras": ("reducer_client.keras", "reducer_client.horovod.keras"),
    "tensorflow": ("reducer_client.tensorflow", "reducer_client.horovod.tensorflow"),
}


def modules() -> Iterator[tuple[str, ast.Module]]:
    for package, folder in PACKAGES.items():
        for path in sorted(folder.rglob("*.py")):
            parts = path.relative_to(folder).with_suffix("").parts
            name = ".".join([package, *parts]).removesuffix(".__init__")
            yield name, ast.parse(path.read_text(), str(path))


def imports(tree: ast.Module) -> Iterator[str]:
    """Every imported name, as long as it is written: ``from a.b import c`` gives ``a.b.c``."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"line {node.lineno}: a relative import"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def within(name: str, prefix: str) -> bool:
    return name == prefix or name.startswith(prefix + ".")


def violations(module: str, tree: ast.Module) -> Iterator[str]:
    for name in imports(tree):
        for prefix, allowed in ALLOWED.items():
            standard = name.split(".")[0] in sys.stdlib_module_names
            if (
                within(module, prefix)
                and not standard
                and not any(within(name, a) for a in allowed)
            ):
                yield f"{module} imports {name}; {prefix} may import {sorted(allowed)}"
        for prefix, forbidden in FORBIDDEN.items():
            if within(module, prefix) and any(within(name, f) for f in forbidden):
                yield f"{module} imports {name}, which is forbidden in {prefix}"
        if within(name, "reducer.cli") and not module.startswith(CLI_IMPORTERS):
            yield f"{module} imports {name}: nothing imports the command line"
        if within(name, "torch") and not module.startswith(TORCH_IMPORTERS):
            yield f"{module} imports {name}: only {TORCH_IMPORTERS} know torch"
        for framework, importers in OTHER_IMPORTERS.items():
            if within(name, framework) and not module.startswith(importers):
                yield f"{module} imports {name}: only {importers} know {framework}"
        if within(name, "matplotlib") and not module.startswith(MATPLOTLIB_IMPORTERS):
            yield f"{module} imports {name}: only {MATPLOTLIB_IMPORTERS} know matplotlib"
    if module.startswith(FILE_FREE):
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("open", "input"):
                yield f"{module} calls open: files belong to the command line and the server"
    if module not in ENVIRONMENT_READERS:
        for node in ast.walk(tree):
            name = getattr(node, "attr", getattr(node, "id", ""))
            if name in ("environ", "environb", "getenv"):
                yield f"{module}: {name} outside a config module"


def test_imports_keep_the_layers() -> None:
    found = [line for module, tree in modules() for line in violations(module, tree)]
    assert not found, "\n".join(found)


def test_importing_reducer_is_cheap() -> None:
    trees = dict(modules())
    assert list(imports(trees["reducer"])) in ([], ["__future__.annotations"])


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("reducer.wire.header", "import numpy"),
        ("reducer.wire.header", "from reducer.core import lane"),
        ("reducer.errors", "from reducer.wire import header"),
        ("reducer.core.round", "def f():\n    import time"),
        ("reducer.core.round", "from reducer.kernels import load"),
        ("reducer.kernels._numpy", "from reducer.wire.header import Header"),
        ("reducer.server.app", "from reducer import cli"),
        ("reducer.log", "import reducer.cli.serve"),
        ("reducer_client.group", "from reducer.core.lane import Lane"),
        ("reducer_client.group", "import torch"),
        ("reducer_client.torch.hook", "def f():\n    import tensorflow as tf"),
        ("reducer_client.keras", "import tensorflow as tf"),
        ("reducer_client.tensorflow", "from keras import ops"),
        ("reducer_client.group", "from jax import numpy"),
        ("reducer.planner.plan", "import yaml"),
        ("reducer.planner.plan", "from pathlib import Path"),
        ("reducer.planner.plan", "open('job.json')"),
        ("reducer.planner.report", "from reducer.planner import figure\nimport matplotlib"),
        ("reducer.planner.plan", "from reducer.cli.documents import read_document"),
        ("reducer_client.group", "import os\nos.environ['A']"),
        ("reducer.server.lane", "import os\nos.getenv('A')"),
        ("reducer.server.lane", "from os import environ\nenviron['A']"),
    ],
)
def test_a_broken_rule_is_found(module: str, source: str) -> None:
    assert list(violations(module, ast.parse(source)))
