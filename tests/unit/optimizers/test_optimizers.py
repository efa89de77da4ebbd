"""Optimizers as data: fields, defaults, refusals, and the scalars of single steps."""

from __future__ import annotations

import math
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reducer.optimizers import (
    SCALARS,
    SGD,
    SLOT_COUNTS,
    Adagrad,
    Adam,
    AdamW,
    NoOptimizer,
    Optimizer,
    OptimizerError,
    Rule,
    from_fields,
    to_fields,
)

SOME: list[Optimizer] = [
    NoOptimizer(),
    NoOptimizer(8),
    SGD(0.1, convention="torch"),
    SGD(0.1, convention="keras", momentum=0.9, nesterov=True, weight_decay=0.1),
    Adagrad(0.1, convention="torch", lr_decay=0.1),
    Adagrad(0.1, convention="tf"),
    Adam(0.1, convention="keras"),
    AdamW(0.1, convention="torch"),
]


@pytest.mark.parametrize("optimizer", SOME, ids=repr)
def test_fields_make_the_same_optimizer(optimizer: Optimizer) -> None:
    fields = to_fields(optimizer)
    assert from_fields(fields) == optimizer
    assert to_fields(from_fields(fields)) == fields


@pytest.mark.parametrize("optimizer", SOME, ids=repr)
def test_slots_and_scalars_are_those_of_the_rule(optimizer: Optimizer) -> None:
    history = optimizer.history - 1 if isinstance(optimizer, NoOptimizer) else 0
    assert len(optimizer.slots) == SLOT_COUNTS[optimizer.rule] + history
    for step in (1, 2, 10**9):
        scalars = optimizer.scalars(step)
        assert type(scalars) is SCALARS[optimizer.rule]
        assert scalars == tuple(struct.unpack("<f", struct.pack("<f", s))[0] for s in scalars)


def test_defaults_are_those_of_the_convention() -> None:
    assert [Adam(1, convention=c).eps for c in ("torch", "tf", "keras")] == [1e-8, 1e-8, 1e-7]
    assert [Adagrad(1, convention=c).eps for c in ("torch", "tf", "keras")] == [1e-10, 0, 1e-7]
    accumulators = [Adagrad(1, convention=c).slots[0].initial for c in ("torch", "tf", "keras")]
    assert accumulators == pytest.approx([0, 0.1, 0.1])
    assert [AdamW(1, convention=c).weight_decay for c in ("torch", "keras")] == [0.01, 0.004]
    assert SGD(1, convention="tf") == SGD(1.0, convention="tf", momentum=0)
    assert Adam(1, convention="torch") != AdamW(1, convention="torch", weight_decay=0)


def test_the_first_step_of_adam_depends_on_the_convention() -> None:
    """A gradient of 1e-7 and lr 1: PyTorch 0.909, TensorFlow 0.240, Keras 0.031."""
    moved = []
    for convention in ("torch", "tf", "keras"):
        s = Adam(1, convention=convention).scalars(1)
        moved.append(s.rate * 1e-7 * s.first_gain / (1e-7 * math.sqrt(s.second_gain) + s.eps))
    assert moved == pytest.approx([1 / 1.1, 0.2403, 0.03065], rel=1e-3)


def test_scalars_of_single_steps() -> None:
    dampened = SGD(0.5, convention="torch", momentum=0.9, dampening=0.25)
    assert [dampened.scalars(step).gain for step in (1, 2, 3)] == [1, 0.75, 0.75]
    decayed = Adagrad(1, convention="torch", lr_decay=0.5)
    assert [decayed.scalars(step).rate for step in (1, 3)] == [1, 0.5]
    assert decayed.scalars(3, lr=4).rate == 2
    both = [SGD(0.5, convention=c, weight_decay=0.25).scalars(1) for c in ("torch", "keras")]
    assert [(s.l2, s.decay) for s in both] == [(0.25, 0), (0, 0.125)]


@pytest.mark.parametrize(
    ("message", "fields"),
    [
        ("optimizer must be one of none, sgd", {"lr": 1}),
        ("optimizer must be one of none, sgd", {"optimizer": ["sgd"]}),
        ("optimizer must be one of none, sgd", {"optimizer": "lamb"}),
        ("none has no field 'lr'; its fields: history", {"optimizer": "none", "lr": 1}),
        ("adam has no field 'amsgrad'; its fields: lr,", {"optimizer": "adam", "amsgrad": True}),
        ("adam needs the field convention", {"optimizer": "adam", "lr": 1}),
        ("adam needs the field lr", {"optimizer": "adam", "convention": "tf"}),
    ],
)
def test_wrong_fields_are_refused(message: str, fields: dict[str, Any]) -> None:
    with pytest.raises(OptimizerError, match=message):
        from_fields(fields)


@pytest.mark.parametrize(
    ("message", "name", "fields"),
    [
        ("convention must be one of torch, tf, keras, got 'jax'", "sgd", {"convention": "jax"}),
        ("convention must be one of torch, keras, got 'tf'", "adamw", {"convention": "tf"}),
        ("lr must be a number, got '1'", "sgd", {"lr": "1"}),
        ("lr must be a number, got True", "sgd", {"lr": True}),
        ("lr must be finite, got nan", "sgd", {"lr": math.nan}),
        ("lr must be finite, got 1000", "sgd", {"lr": 10**400}),
        ("lr must lie between 0 and the largest float32, got -0.1", "sgd", {"lr": -0.1}),
        ("lr must lie between 0 and the largest float32, got 1e\\+39", "sgd", {"lr": 1e39}),
        ("momentum must lie between 0 and 1, got 1.5", "sgd", {"momentum": 1.5}),
        ("dampening must lie between 0 and 1", "sgd", {"momentum": 0.9, "dampening": 2}),
        ("nesterov must be true or false, got 1", "sgd", {"momentum": 0.9, "nesterov": 1}),
        ("nesterov and dampening need a momentum", "sgd", {"nesterov": True}),
        ("nesterov and dampening need a momentum", "sgd", {"dampening": 0.1}),
        ("needs a dampening of 0", "sgd", {"momentum": 1, "nesterov": True, "dampening": 0.1}),
        (
            "dampening must be 0, because keras has none",
            "sgd",
            {"convention": "keras", "momentum": 0.9, "dampening": 0.1},
        ),
        (
            "weight_decay must be 0, because TensorFlow's",
            "adam",
            {"convention": "tf", "weight_decay": 0.1},
        ),
        ("weight_decay must lie between 0", "adagrad", {"weight_decay": -1}),
        ("lr_decay must be 0, because tf", "adagrad", {"convention": "tf", "lr_decay": 0.1}),
        ("eps or initial_accumulator must be at least 1.18e-38", "adagrad", {"eps": 0}),
        ("beta1 must be at least 0 and below 1, got 1.0", "adam", {"beta1": 1}),
        ("beta2 must lie between 0", "adam", {"beta2": -0.1}),
        ("eps must lie between 3.717", "adam", {"eps": 0}),
    ],
)
def test_wrong_values_are_refused(message: str, name: str, fields: dict[str, Any]) -> None:
    with pytest.raises(OptimizerError, match=f"^{name}: .*{message}"):
        from_fields({"optimizer": name, "lr": 0.1, "convention": "torch", **fields})


@pytest.mark.parametrize("history", [0, 9, True, 2.0, "2"])
def test_wrong_histories_are_refused(history: Any) -> None:
    with pytest.raises(OptimizerError, match=r"^none: history must be an integer from 1 to 8"):
        from_fields({"optimizer": "none", "history": history})


@pytest.mark.parametrize("optimizer", SOME, ids=repr)
def test_wrong_steps_are_refused(optimizer: Optimizer) -> None:
    wrong: list[Any] = [0, -1, 1.0, True, None]
    for step in wrong:
        with pytest.raises(OptimizerError, match="number of a step must be an integer from 1 on"):
            optimizer.scalars(step)
    if optimizer.rule != Rule.REPLACE:
        for lr in (-1.0, math.nan, 1e39):
            with pytest.raises(OptimizerError, match="lr must"):
                optimizer.scalars(1, lr)


def test_a_scalar_beyond_float32_is_refused() -> None:
    huge = AdamW(1e30, convention="torch", weight_decay=1e30)
    with pytest.raises(OptimizerError, match="scalar decay is beyond float32: 1"):
        huge.scalars(1)


VALUES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
FIELDS = ["optimizer", "lr", "convention", "momentum", "nesterov", "dampening", "beta1", "beta2"]
FIELDS += ["eps", "weight_decay", "lr_decay", "initial_accumulator"]
SENSIBLE = {
    "optimizer": st.sampled_from(["none", "sgd", "adagrad", "adam", "adamw"]),
    "convention": st.sampled_from(["torch", "tf", "keras"]),
}


@given(
    st.dictionaries(st.sampled_from(FIELDS), VALUES | st.floats(0, 1)),
    st.fixed_dictionaries({}, optional=SENSIBLE),
)
def test_any_fields_are_read_or_refused(any_values: dict[str, Any], names: dict[str, str]) -> None:
    try:
        optimizer = from_fields(any_values | names)
        assert from_fields(to_fields(optimizer)) == optimizer
        assert all(map(math.isfinite, optimizer.scalars(1)))
    except OptimizerError:
        pass
