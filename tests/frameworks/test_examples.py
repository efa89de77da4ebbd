"""The examples of frameworks other than PyTorch, run as examples/README.md says."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.examples import run_example
from tests.support.frameworks import needs

# What it needs, and the least bytes: gradients of two ranks in all steps.
NET = 4 * (65 * 256 + 257 * 10)
VIT = 276_776
EXAMPLES = [
    pytest.param("lightning_digits", 2 * 8 * 30 * NET, marks=needs("lightning")),
    pytest.param("accelerate_digits", 2 * 8 * 30 * NET, marks=needs("accelerate")),
    pytest.param("hf_trainer", 2 * 8 * 30 * VIT, marks=needs("accelerate", "transformers")),
    pytest.param("jax_digits", 2 * 10 * 30 * NET, marks=needs("jax")),
    pytest.param("keras_digits", 2 * 8 * 30 * NET, marks=needs("keras", "tensorflow")),
    pytest.param("ray_digits", 2 * 8 * 30 * NET, marks=needs("ray")),
]


@needs("sklearn")
@pytest.mark.timeout(240)
@pytest.mark.parametrize(("name", "gradients"), EXAMPLES)
def test_an_example_learns_the_digits_through_the_reducers(
    name: str, gradients: int, addresses: list[str], tmp_path: Path
) -> None:
    accuracy, taken = run_example(name, addresses[0], tmp_path)
    assert accuracy > 0.85
    assert gradients <= taken < 1.3 * gradients
