"""Steps by the conventions of TensorFlow and Keras, compared with their formulas in float64.

Sources: ``tensorflow/core/kernels/training_ops.cc`` and ``keras/src/optimizers``.
tests/frameworks/test_optimizers.py compares with the frameworks themselves.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from reducer.optimizers import SGD, Adagrad, Adam, AdamW, NoOptimizer, Optimizer
from tests.support.optimizer_runs import COUNT, EXACT, Array, Given, difference, initial, run, steps

Step = Callable[[Array, Given, list[Array], Any], Array]


def tf_momentum(p: Array, given: Given, slots: list[Array], o: SGD) -> Array:
    g, accumulator = given.gradient, slots[0]
    accumulator[:] = accumulator * o.momentum + g
    if o.nesterov:
        return p - (g * given.lr + accumulator * o.momentum * given.lr)
    return p - accumulator * given.lr


def tf_adagrad(p: Array, given: Given, slots: list[Array], o: Adagrad) -> Array:
    slots[0] += np.square(given.gradient.astype(np.float64))
    if o.eps == 0:
        return p - given.gradient * given.lr * slots[0] ** -0.5
    return p - given.gradient * given.lr / (np.sqrt(slots[0]) + o.eps)


def tf_adam(p: Array, given: Given, slots: list[Array], o: Adam) -> Array:
    g, (m, v) = given.gradient.astype(np.float64), slots
    alpha = given.lr * np.sqrt(1 - o.beta2**given.step) / (1 - o.beta1**given.step)
    m[:] = o.beta1 * m + (1 - o.beta1) * g
    v[:] = o.beta2 * v + (1 - o.beta2) * g**2
    return p - alpha * m / (np.sqrt(v) + o.eps)


def keras_decay(p: Array, given: Given, o: SGD | Adagrad | Adam) -> Array:
    return p - p * o.weight_decay * given.lr


def keras_sgd(p: Array, given: Given, slots: list[Array], o: SGD) -> Array:
    p, g = keras_decay(p, given, o), given.gradient
    if o.momentum == 0:
        return p - given.lr * g
    velocity = slots[0]
    velocity[:] = o.momentum * velocity - given.lr * g
    return p + (o.momentum * velocity - given.lr * g if o.nesterov else velocity)


def keras_adagrad(p: Array, given: Given, slots: list[Array], o: Adagrad) -> Array:
    p = keras_decay(p, given, o)
    slots[0] += np.square(given.gradient.astype(np.float64))
    return p - given.lr * given.gradient / np.sqrt(slots[0] + o.eps)


def keras_adam(p: Array, given: Given, slots: list[Array], o: Adam) -> Array:
    return tf_adam(keras_decay(p, given, o), given, slots, o)


def none(p: Array, given: Given, slots: list[Array], o: NoOptimizer) -> Array:
    return given.gradient.astype(np.float64)


TF_ADAM = Adam(0.001, convention="tf")
KERAS_ADAM = Adam(0.001, convention="keras", weight_decay=0.01)
KERAS_ADAGRAD = Adagrad(0.01, convention="keras", initial_accumulator=0.0)
CASES: list[tuple[Optimizer, Step]] = [
    (SGD(0.1, convention="tf", momentum=0.9), tf_momentum),
    (SGD(0.1, convention="tf", momentum=0.9, nesterov=True), tf_momentum),
    (Adagrad(0.01, convention="tf"), tf_adagrad),
    (Adagrad(0.01, convention="tf", eps=1e-7, initial_accumulator=0.0), tf_adagrad),
    (TF_ADAM, tf_adam),
    (SGD(0.1, convention="keras", weight_decay=0.01), keras_sgd),
    (SGD(0.1, convention="keras", momentum=0.9, weight_decay=0.01), keras_sgd),
    (SGD(0.1, convention="keras", momentum=0.9, nesterov=True), keras_sgd),
    (Adagrad(0.01, convention="keras"), keras_adagrad),
    (Adagrad(0.01, convention="keras", eps=1e-3, weight_decay=0.01), keras_adagrad),
    (KERAS_ADAGRAD, keras_adagrad),
    (Adam(0.001, convention="keras"), keras_adam),
    (KERAS_ADAM, keras_adam),
    (AdamW(0.001, convention="keras"), keras_adam),
    (NoOptimizer(), none),
]
WRONG: list[tuple[Optimizer, Step, Optimizer]] = [
    (TF_ADAM, tf_adam, Adam(0.001, convention="torch", eps=1e-8)),
    (TF_ADAM, tf_adam, Adam(0.001, convention="keras")),
    (KERAS_ADAM, keras_adam, Adam(0.001, convention="keras")),
    (
        KERAS_ADAGRAD,
        keras_adagrad,
        Adagrad(0.01, convention="tf", eps=1e-7, initial_accumulator=0.0),
    ),
]


def name_of(value: object) -> str:
    return getattr(value, "__name__", repr(value))


def reference(optimizer: Optimizer, step: Step) -> list[Array]:
    parameters = initial().astype(np.float64)
    slots = [np.full(COUNT, slot.initial) for slot in optimizer.slots]
    way = [parameters]
    for given in steps(getattr(optimizer, "lr", 0.0)):
        way.append(step(way[-1], given, slots, optimizer))
    return way


@pytest.mark.parametrize(("optimizer", "step"), CASES, ids=name_of)
def test_a_thousand_steps_follow_the_formula(optimizer: Optimizer, step: Step) -> None:
    assert difference(run(optimizer), reference(optimizer, step)) < EXACT


@pytest.mark.parametrize(("optimizer", "step", "wrong"), WRONG, ids=name_of)
def test_another_formula_is_not_close(optimizer: Optimizer, step: Step, wrong: Optimizer) -> None:
    assert difference(run(wrong), reference(optimizer, step)) > 10 * EXACT
