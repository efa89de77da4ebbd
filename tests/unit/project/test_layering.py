"""The layers of the tree: which room may import which, checked by a walk over every import.

Imports inside functions count. A room is a folder. There are no import cycles, neither between the
files of a room nor between rooms: shared rooms below, the daemon and the client beside each other,
the tools above both.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PACKAGES = {
    "reducer": ROOT / "reducer",
    "reducer_client": ROOT / "client" / "reducer_client",
    "reducer_tools": ROOT / "client" / "reducer_tools",
}

# The imports that each room is allowed besides its own room and the standard library. A name stands
# for itself and all names below it.
SHARED = {"reducer.cluster", "reducer.kernels", "reducer.registry", "reducer.wire"}
SHARED |= {"reducer.optimizers"}
SHARED |= {"reducer.__version__"}
SHARED |= {
    f"reducer.{name}"
    for name in ("columns", "compiled", "cores", "keyfile", "log", "nic", "parent", "shares")
}
SHARED |= {"reducer.system_files", "reducer.units", "reducer.version"}
CLIENT = {*SHARED, "reducer_client", "numpy"}
TORCH = {*SHARED, "reducer_client.config", "reducer_client.hosted", "numpy", "torch"} | {
    f"reducer_client.{path.stem}" for path in (ROOT / "client" / "reducer_client").glob("*.py")
}
STAGED = TORCH | {"reducer_client.torch.staging", "reducer_client.torch.tensors"}
SERVER = {*SHARED, "reducer.core"} | {
    f"reducer.server.{path.stem}" for path in (ROOT / "reducer" / "server").glob("*.py")
}
TOOLS = {*SHARED, "reducer.status", "reducer_tools.children", "numpy"}
ROUNDS = {"reducer.wire"} | {f"reducer.core.{name}" for name in ("containers", "limits", "surface")}
ALLOWED = {
    "reducer": {"reducer.wire", "reducer._compiled"},
    "reducer.wire": {"msgpack"},
    "reducer.cluster": {"reducer.wire.codes", "reducer.columns"},
    "reducer.registry": {"reducer.wire"},
    # typing_extensions is only for the type checker.
    "reducer.optimizers": set(),
    "reducer.kernels": {"reducer.optimizers", "reducer.wire.codes"}
    | {"numpy", "google_crc32c", "typing_extensions"},
    "reducer.core": {"reducer.wire", "reducer.core", "reducer.registry"},
    "reducer.core.containers": set(),
    "reducer.core.measures": set(),
    "reducer.core.surface": {"reducer.wire", "reducer.registry"},
    "reducer.core.registry": {"reducer.wire", "reducer.registry", "reducer.core.surface"},
    "reducer.core.limits": {"reducer.wire", "reducer.core.surface"},
    "reducer.core.rounds": ROUNDS,
    "reducer.core.runs": {*ROUNDS, "reducer.core.measures", "reducer.core.rounds"},
    "reducer.core.members": {*ROUNDS, "reducer.core.rounds", "reducer.core.runs"},
    "reducer.core.tables": {"reducer.wire", "reducer.optimizers"}
    | {"reducer.core.surface", "reducer.core.limits"},
    "reducer.native": {"mypyc"},
    "reducer.status": {"reducer.cluster.addresses", "reducer.columns", "reducer.system_files"},
    "reducer.server": {*SHARED, "reducer.core"},
    # The rooms of the daemon, lowest first.
    "reducer.server.pipe": SERVER,
    "reducer.server.data": {*SERVER, "reducer.server.pipe", "uvloop", "numpy"},
    "reducer.server.gates": {*SERVER, "reducer.server.data"},
    "reducer.server.registry": {*SERVER, "google_crc32c", "msgpack"},
    "reducer.server.lane": SERVER
    | {f"reducer.server.{name}" for name in ("pipe", "data", "gates", "registry")}
    | {"uvloop"},
    "reducer.server.daemon": SERVER
    | {f"reducer.server.{name}" for name in ("pipe", "lane")}
    | {"reducer.status", "google_crc32c", "prometheus_client", "uvloop"},
    "reducer.cli": {*SHARED, "reducer.server", "reducer.status", "click"},
    "reducer_client": {*CLIENT, "jax", "tensorflow"},
    "reducer_client.hosted": SHARED,
    "reducer_client.config": {*SHARED, "reducer_client.hosted"},
    "reducer_client.registry": {*SHARED, "reducer_client.errors", "google_crc32c"},
    "reducer_client.tables.checkpoints": {"reducer.optimizers", "reducer_client.errors"}
    | {"numpy", "safetensors"},
    "reducer_client.elastic": {*CLIENT, "msgpack"},
    "reducer_client.tables": {*SHARED, "msgpack", "numpy", "reducer_client.registry"}
    | {"reducer_client.tables.checkpoints"}
    | {f"reducer_client.{name}" for name in ("arrays", "config", "errors", "interrupts", "trust")},
    # What local steps have in common is the arithmetic of any framework.
    "reducer_client.outer": set(),
    "reducer_client.keras": {*CLIENT, "keras"},
    "reducer_client.ray": {*CLIENT, "ray"},
    "reducer_client.torch": {*CLIENT, "torch", "lightning"},
    # The rooms of torch, lowest first.
    "reducer_client.torch.tensors": TORCH,
    "reducer_client.torch.staging": TORCH | {"reducer_client.torch.tensors"},
    "reducer_client.torch.hierarchy": TORCH,
    "reducer_client.torch.calls": STAGED | {"reducer_client.torch.hierarchy"},
    "reducer_client.torch.backend": STAGED
    | {f"reducer_client.torch.{name}" for name in ("calls", "hierarchy")},
    "reducer_client.torch.hook": STAGED,
    "reducer_client.torch.overlap": STAGED | {"reducer_client.torch.hook"},
    "reducer_client.torch.elastic": STAGED | {"reducer_client.elastic"},
    "reducer_client.torch.local": STAGED
    | {f"reducer_client.{name}" for name in ("elastic", "outer", "torch.elastic")},
    "reducer_client.torch.server": TORCH
    | {"reducer_client.tables", "reducer_client.torch.tensors"},
    "reducer_client.horovod": {*CLIENT, "msgpack"},
    "reducer_client.horovod.torch": {*CLIENT, "torch"},
    "reducer_client.horovod.keras": {*CLIENT, "keras"},
    "reducer_client.horovod.tensorflow": {*CLIENT, "tensorflow"},
    "reducer_tools": {"reducer.parent"},
    "reducer_tools.bench": {*TOOLS, "reducer_client", "reducer_tools.planner", "rich"},
    "reducer_tools.demo": {*TOOLS, "reducer_client", "reducer_tools.netlab"}
    | {"torch", "matplotlib", "rich"},
    "reducer_tools.doctor": {*TOOLS, "reducer_client", "reducer.server.serve_options"},
    "reducer_tools.k8s": {"reducer.units", "reducer.__version__"},
    "reducer_tools.netlab": set(),
    "reducer_tools.nccl": {"reducer.cluster", "reducer.status", "reducer_tools.children", "numpy"},
    "reducer_tools.planner": {"reducer.columns", "reducer.shares", "reducer.units", "matplotlib"},
    "reducer_tools.top": {"reducer.status", "rich"},
    "reducer_tools.cli": {*TOOLS, "reducer.cli", "reducer_client", "reducer_tools"}
    | {"click", "rich", "yaml"},
}
# Modules that no module imports, or that import higher rooms only on demand: the programs, torch's
# entry point, and the package with Horovod's names.
DOORS = {
    "reducer.__main__": {"reducer.cli"},
    "reducer_tools.__main__": {"reducer_tools.cli"},
    "reducer_client.torch_autoload": {"reducer_client.torch", "torch"},
    "reducer_client.horovod": {"reducer_client.horovod.torch"},
}
# Modules of the standard library that a room may not import: I/O, clocks and randomness.
PURE = {"asyncio", "socket", "threading", "time", "random", "os", "subprocess"}
FORBIDDEN = {
    "reducer.wire": PURE,
    "reducer.registry": PURE,
    "reducer.optimizers": PURE,
    **{room: PURE for room in ALLOWED if room.startswith("reducer.core")},
    "reducer_client.outer": PURE,
    # Checkpoints are files. Which tables they hold comes from elsewhere.
    "reducer_client.tables.checkpoints": PURE - {"os", "time"},
    # Files, standard input and the clock belong to the command line; figures are not written here.
    "reducer_tools.planner": PURE
    | {"io", "pathlib", "importlib", "sys", "shutil", "tempfile", "urllib", "http"},
}
ENVIRONMENT_READERS = {
    "reducer.server.serve_options",
    "reducer_client.config.cluster",
    "reducer_client.config.given",
    "reducer_client.config.hosting",
    "reducer_client.config.logs",
    "reducer_client.config.secrets",
    "reducer_client.config.settings",
    "reducer_client.elastic.config",
    "reducer_client.horovod.config",
    "reducer_tools.nccl.config",
}
# Rooms in which imports under TYPE_CHECKING count, too.
TYPED = ("reducer.core", "reducer.server")
# The only modules that may import these packages.
ONLY = {
    "matplotlib": ("reducer_tools.planner.figure", "reducer_tools.demo"),
    "safetensors": ("reducer_client.tables.checkpoints",),
    "jax": ("reducer_client.jax",),
    "lightning": ("reducer_client.torch.lightning",),
    "ray": ("reducer_client.ray",),
    "keras": ("reducer_client.keras", "reducer_client.horovod.keras"),
    "tensorflow": ("reducer_client.tensorflow", "reducer_client.horovod.tensorflow"),
}


def _modules() -> dict[str, tuple[str, ast.Module]]:
    """The room and the syntax tree of every module, by name."""
    found = {}
    for package, folder in PACKAGES.items():
        for path in sorted(folder.rglob("*.py")):
            room = ".".join([package, *path.relative_to(folder).parent.parts])
            name = room if path.stem == "__init__" else f"{room}.{path.stem}"
            found[name] = (room, ast.parse(path.read_text(), str(path)))
    return found


MODULES = _modules()


def imports(tree: ast.Module) -> Iterator[str]:
    """Every imported name in full: ``from a.b import c`` gives ``a.b.c``."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"line {node.lineno}: a relative import"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def within(name: str, prefix: str) -> bool:
    return name == prefix or name.startswith(prefix + ".")


def module_of(name: str) -> str:
    """Our module that contains an imported name; "" for other names."""
    while name and name not in MODULES:
        name = name.rpartition(".")[0]
    return name


def violations(module: str, tree: ast.Module) -> Iterator[str]:
    room = MODULES[module][0]
    allowed = ALLOWED[room] | DOORS.get(module, set())
    forbidden = FORBIDDEN.get(room, set())
    for name in imports(tree):
        top = name.split(".")[0]
        if top in sys.stdlib_module_names:
            if top in forbidden:
                yield f"{module} imports {name}, which is forbidden in {room}"
            continue
        own = module_of(name)
        if not (own and MODULES[own][0] == room) and not any(within(name, a) for a in allowed):
            yield f"{module} imports {name}; {room} may import {sorted(allowed)}"
        if top in ONLY and not module.startswith(ONLY[top]):
            yield f"{module} imports {name}: only {ONLY[top]} know {top}"
    for node in ast.walk(tree):
        called = getattr(node.func, "id", "") if isinstance(node, ast.Call) else ""
        if called in ("open", "input") and room in FORBIDDEN:
            yield f"{module} calls {called}: files belong to the command line and the server"
        name = getattr(node, "attr", getattr(node, "id", ""))
        if name in ("environ", "environb", "getenv") and module not in ENVIRONMENT_READERS:
            yield f"{module}: {name} outside a config module"


def _arrows() -> Iterator[tuple[str, str]]:
    """Pairs (module, imported module), without DOORS and imports under TYPE_CHECKING.

    In the rooms of TYPED, imports under TYPE_CHECKING count.
    """
    for module, (_, tree) in MODULES.items():
        for_types = {
            node
            for branch in ast.walk(tree)
            if isinstance(branch, ast.If) and getattr(branch.test, "id", "") == "TYPE_CHECKING"
            for node in ast.walk(branch)
            if not any(within(module, room) for room in TYPED)
        }
        body = ast.Module([node for node in ast.walk(tree) if _imports(node, for_types)], [])
        for name in imports(body):
            other = module_of(name)
            if other and other != module and not _by_a_door(module, other):
                yield module, other


def _imports(node: ast.AST, left_out: set[ast.AST]) -> bool:
    return isinstance(node, ast.Import | ast.ImportFrom) and node not in left_out


def _by_a_door(module: str, other: str) -> bool:
    return any(within(other, name) for name in DOORS.get(module, ()))


def find_cycle(arrows: Mapping[str, set[str]]) -> list[str]:
    """A path from a node back to itself; [] if there is no cycle."""
    done: set[str] = set()

    def search(node: str, way: list[str]) -> list[str]:
        if node in way:
            return way[way.index(node) :]
        if node in done:
            return []
        for other in sorted(arrows.get(node, ())):
            if found := search(other, [*way, node]):
                return found
        done.add(node)
        return []

    return next(filter(None, (search(node, []) for node in sorted(arrows))), [])


def test_imports_keep_the_layers() -> None:
    found = [line for module, (_, tree) in MODULES.items() for line in violations(module, tree)]
    assert not found, "\n".join(found)


def test_files_and_rooms_have_no_import_cycles() -> None:
    files: dict[str, set[str]] = {}
    rooms: dict[str, set[str]] = {}
    for module, other in _arrows():
        files.setdefault(module, set()).add(other)
        room, other_room = MODULES[module][0], MODULES[other][0]
        if room != other_room:
            rooms.setdefault(room, set()).add(other_room)
    assert not find_cycle(files)
    assert not find_cycle(rooms)


def test_a_cycle_is_found() -> None:
    assert find_cycle({"a": {"b"}, "b": {"c", "d"}, "c": {"b"}}) == ["b", "c"]
    assert not find_cycle({"a": {"b", "c"}, "b": {"c"}})


def test_importing_reducer_is_cheap() -> None:
    assert list(imports(MODULES["reducer"][1])) in ([], ["__future__.annotations"])


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("reducer.wire.header", "import numpy"),
        ("reducer.wire.header", "from reducer.core import lane"),
        ("reducer.wire.header", "import os"),
        ("reducer.core.rounds.round", "def f():\n    import time"),
        ("reducer.core.rounds.round", "from reducer.kernels import load"),
        ("reducer.kernels._numpy", "from reducer.wire.header import Header"),
        ("reducer.optimizers.adam", "from reducer.kernels import load"),
        ("reducer.optimizers.adam", "import numpy"),
        ("reducer.core.rounds.round", "from reducer.core.runs import run"),
        ("reducer.server.daemon.app", "from reducer import cli"),
        ("reducer.server.daemon.app", "from reducer_client import connect"),
        ("reducer.cli.serve", "from reducer_tools.cli import main"),
        ("reducer.log", "import reducer.cli.serve"),
        ("reducer_client.group", "from reducer.core.lane import Lane"),
        ("reducer_client.group", "from reducer_tools.doctor import diagnosis"),
        ("reducer_client.group", "import torch"),
        ("reducer_client.torch.hook.ddp", "def f():\n    import tensorflow as tf"),
        ("reducer_client.keras", "import tensorflow as tf"),
        ("reducer_client.tables.checkpoints.saving", "from reducer_client.group import Group"),
        ("reducer_client.tables.checkpoints.saving", "import socket"),
        ("reducer_client.tensorflow", "from keras import ops"),
        ("reducer_client.group", "from jax import numpy"),
        ("reducer_client.torch.lightning", "import ray"),
        ("reducer_tools.planner.plan", "import yaml"),
        ("reducer_tools.planner.plan", "from pathlib import Path"),
        ("reducer_tools.planner.plan", "open('job.json')"),
        ("reducer_tools.planner.report", "import matplotlib"),
        ("reducer_tools.planner.plan", "from reducer_tools.cli.documents import read_document"),
        ("reducer_client.group", "import os\nos.environ['A']"),
        ("reducer.server.lane.process", "import os\nos.getenv('A')"),
        ("reducer.server.lane.process", "from os import environ\nenviron['A']"),
    ],
)
def test_a_broken_rule_is_found(module: str, source: str) -> None:
    assert list(violations(module, ast.parse(source)))
