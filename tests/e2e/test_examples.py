"""The examples that need at most PyTorch; tests/frameworks has the others."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.cluster import Daemon
from tests.support.examples import README, commands, run_example
from tests.support.frameworks import needs_extra

pytestmark = needs_extra("torch", "sklearn")

# Lower bounds of the bytes: gradients of two ranks in all steps.
NET = 4 * (65 * 256 + 257 * 10)
EXAMPLES = {
    "compression": 2 * 6 * 30 * NET * 3 // 2,  # whole gradients, then half, then a hundredth
    "ddp_backend": 2 * 8 * 30 * NET,
    "ddp_hook": 2 * 8 * 30 * NET,
    "elastic_digits": 2 * 8 * 30 * NET,
    "fsdp2": 2 * 5 * 30 * NET,
    "horovod_digits": 2 * 8 * 30 * NET,
    "numpy_sgd": 2 * 60 * 15 * 4 * 65 * 10,
}
# Each takes 15 CPU seconds; what they show has tests of its own.
AT_NIGHT = ("compression", "ddp_backend", "ddp_hook", "elastic_digits", "fsdp2", "horovod_digits")
ELSEWHERE = {
    "accelerate_digits",
    "hf_trainer",
    "jax_digits",
    "keras_digits",
    "lightning_digits",
    "ray_digits",
}
BELOW = {"ps_digits"}  # a section of its own, below the table


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.long] * (name in AT_NIGHT)) for name in EXAMPLES],
)
def test_an_example_learns_the_digits_through_the_reducers(
    name: str, addresses: list[str], tmp_path: Path
) -> None:
    if name == "elastic_digits":
        with Daemon("--registry", str(tmp_path / "registry")) as keeper:
            accuracy, taken = run_example(name, keeper.address, tmp_path)
    else:
        accuracy, taken = run_example(name, addresses[0], tmp_path)
    assert accuracy > 0.93
    assert EXAMPLES[name] <= taken < 2.5 * EXAMPLES[name]


def test_every_example_is_on_the_page_and_is_run() -> None:
    programs = {path.stem for path in README.parent.glob("*.py")} - {"digits"}
    assert programs - BELOW == set(commands()) == {*EXAMPLES, *ELSEWHERE}
    assert all(f"examples/{name}.py" in command for name, command in commands().items())
