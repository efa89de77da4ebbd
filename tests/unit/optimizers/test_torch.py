"""Steps by PyTorch's convention are the steps of ``torch.optim``, for every option."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from reducer.optimizers import SGD, Adagrad, Adam, AdamW, Optimizer
from tests.support.optimizer_runs import CLOSE, EXACT, difference, initial, run, steps

KINDS: dict[str, tuple[type[Optimizer], type[torch.optim.Optimizer]]] = {
    "sgd": (SGD, torch.optim.SGD),
    "adagrad": (Adagrad, torch.optim.Adagrad),
    "adam": (Adam, torch.optim.Adam),
    "adamw": (AdamW, torch.optim.AdamW),
}
# Name, learning rate, options in our words.
CASES: list[tuple[str, float, dict[str, Any]]] = [
    ("sgd", 0.1, {}),
    ("sgd", 0.1, {"weight_decay": 0.01}),
    ("sgd", 0.1, {"momentum": 0.9}),
    ("sgd", 0.1, {"momentum": 0.9, "weight_decay": 0.01}),
    ("sgd", 0.1, {"momentum": 0.9, "dampening": 0.5}),
    ("sgd", 0.1, {"momentum": 0.9, "nesterov": True, "weight_decay": 0.01}),
    ("adagrad", 0.01, {}),
    ("adagrad", 0.01, {"lr_decay": 0.01, "weight_decay": 0.01}),
    ("adagrad", 0.01, {"eps": 1e-3, "initial_accumulator": 0.1}),
    ("adam", 0.001, {}),
    ("adam", 0.001, {"beta1": 0.5, "beta2": 0.9, "eps": 1e-4}),
    ("adam", 0.001, {"beta1": 0.0, "weight_decay": 0.01}),
    ("adamw", 0.001, {}),
    ("adamw", 0.001, {"weight_decay": 0.3}),
]
WRONG: list[tuple[tuple[str, float, dict[str, Any]], Optimizer]] = [
    (("adam", 0.001, {}), Adam(0.001, convention="tf")),
    (("adamw", 0.001, {}), Adam(0.001, convention="torch", weight_decay=0.01)),
    (("adam", 0.001, {}), Adam(0.001, convention="torch", beta1=0.91)),
    (
        ("adagrad", 0.01, {"eps": 1e-7}),
        Adagrad(0.01, convention="keras", eps=1e-7, initial_accumulator=0),
    ),
    (("sgd", 0.1, {"momentum": 0.9}), SGD(0.1, convention="keras", momentum=0.9)),
    (("sgd", 0.1, {"momentum": 0.9}), SGD(0.1, convention="tf", momentum=0.9, nesterov=True)),
]


def run_torch(name: str, lr: float, options: dict[str, Any], dtype: torch.dtype) -> list[Any]:
    words = dict(options)
    if "beta1" in words:
        words["betas"] = (words.pop("beta1"), words.pop("beta2", 0.999))
    if "initial_accumulator" in words:
        words["initial_accumulator_value"] = words.pop("initial_accumulator")
    parameters = torch.from_numpy(initial()).to(dtype).requires_grad_()
    make: Any = KINDS[name][1]
    optimizer = make([parameters], lr=lr, **words)
    way = [parameters.detach().numpy().copy()]
    for given in steps(lr):
        optimizer.param_groups[0]["lr"] = given.lr
        parameters.grad = torch.from_numpy(given.gradient).to(dtype)
        optimizer.step()
        way.append(parameters.detach().numpy().copy())
    return way


@pytest.mark.parametrize(("name", "lr", "options"), CASES)
def test_steps_are_those_of_torch(name: str, lr: float, options: dict[str, Any]) -> None:
    ours: Any = KINDS[name][0]
    way = run(ours(lr, convention="torch", **options))
    # torch rounds AdamW's factor 1 - lr * weight_decay to float32; our steps are closer to float64.
    bound = EXACT if name == "adamw" else CLOSE
    assert difference(way, run_torch(name, lr, options, torch.float32)) < bound
    assert difference(way, run_torch(name, lr, options, torch.float64)) < EXACT


@pytest.mark.parametrize(("case", "wrong"), WRONG)
def test_another_formula_is_not_close(
    case: tuple[str, float, dict[str, Any]], wrong: Optimizer
) -> None:
    assert difference(run(wrong), run_torch(*case, torch.float32)) > 10 * EXACT
