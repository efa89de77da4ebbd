"""The client names the device of each tensor that it makes, whatever the default device."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("torch")

import torch  # only where it is installed
from torch.utils._device import _device_constructors

import reducer_client
from reducer_client.torch.staging.cuda import CudaDevice
from tests.support import cuda

CLIENT = Path(reducer_client.__file__).parent
FACTORIES = {factory.__name__ for factory in _device_constructors()}


def _calls_without_device(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and isinstance(node.func.value, ast.Name)
            and node.func.value.id == "torch"
            and node.func.attr in FACTORIES
            and "device" not in {keyword.arg for keyword in node.keywords}
        ):
            yield f"{path.relative_to(CLIENT)}:{node.lineno}: torch.{node.func.attr}"


def test_every_tensor_is_made_on_a_device_that_is_named() -> None:
    """Otherwise ``torch.set_default_device("cuda")`` would move network buffers to the GPU."""
    assert {"empty", "zeros", "tensor", "sparse_coo_tensor"} <= FACTORIES
    paths = sorted(CLIENT.rglob("*.py"))
    assert [call for path in paths for call in _calls_without_device(path)] == []


@pytest.mark.skipif(not cuda.absence(), reason="this machine has CUDA's driver")
def test_without_cudas_driver_the_host_waits() -> None:
    """As with AMD's devices, which torch calls cuda, too."""
    assert not CudaDevice(torch.device("cuda", 0)).can_order()
