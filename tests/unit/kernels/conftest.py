from __future__ import annotations

from collections.abc import Iterator

import pytest

from reducer.kernels import KernelSet, _native, _numpy


@pytest.fixture(params=["numpy", *_native.levels()])
def kernels(request: pytest.FixtureRequest) -> Iterator[KernelSet]:
    """The NumPy kernels, and the native ones on each instruction set of this machine."""
    if request.param == "numpy":
        yield _numpy
        return
    _native.use_level(request.param)
    yield _native
    _native.use_level(_native.levels()[0])
