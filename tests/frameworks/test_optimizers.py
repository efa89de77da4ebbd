"""``reducer.optimizers`` makes the same steps as TensorFlow's kernels and Keras' optimizers.

Without weight decay the steps of SGD and Adagrad are even equal bit for bit, except for Nesterov's
momentum and the reciprocal square root in TensorFlow. Adam differs most: both frameworks compute
1 - beta in float32, which changes 1 - 0.999 by 5e-5 of itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from reducer.optimizers import SGD, Adagrad, Adam, AdamW, Optimizer
from tests.frameworks.imports import import_keras
from tests.support.frameworks import needs
from tests.support.optimizer_runs import CLOSE, COUNT, EXACT, difference, initial, run, steps

Step = Callable[[Any, Any, list[Any], Any, Any], None]

TENSORFLOW: list[Optimizer] = [
    SGD(0.1, convention="tf"),
    SGD(0.1, convention="tf", momentum=0.9),
    SGD(0.1, convention="tf", momentum=0.9, nesterov=True),
    Adagrad(0.01, convention="tf"),
    Adagrad(0.01, convention="tf", eps=1e-7),
    Adam(0.001, convention="tf"),
]
KERAS: list[Optimizer] = [
    SGD(0.1, convention="keras", weight_decay=0.01),
    SGD(0.1, convention="keras", momentum=0.9),
    SGD(0.1, convention="keras", momentum=0.9, nesterov=True),
    Adagrad(0.01, convention="keras"),
    Adagrad(0.01, convention="keras", initial_accumulator=0.0),
    Adam(0.001, convention="keras", beta1=0.8),
    AdamW(0.001, convention="keras"),
]


def apply_tensorflow(ops: Any, variable: Any, slots: list[Any], given: Any, o: Any) -> None:
    """One step by the kernel that TensorFlow 1's optimizers call."""
    common = {"var": variable.handle, "lr": np.float32(given.lr), "grad": given.gradient}
    if isinstance(o, SGD) and not o.momentum:
        del common["lr"], common["grad"]
        ops.ResourceApplyGradientDescent(**common, alpha=np.float32(given.lr), delta=given.gradient)
    elif isinstance(o, SGD):
        ops.ResourceApplyMomentum(
            **common,
            accum=slots[0].handle,
            momentum=np.float32(o.momentum),
            use_nesterov=o.nesterov,
        )
    elif isinstance(o, Adagrad) and o.eps:
        ops.ResourceApplyAdagradV2(**common, accum=slots[0].handle, epsilon=np.float32(o.eps))
    elif isinstance(o, Adagrad):
        ops.ResourceApplyAdagrad(**common, accum=slots[0].handle)
    else:
        ops.ResourceApplyAdam(
            **common,
            m=slots[0].handle,
            v=slots[1].handle,
            beta1_power=np.float32(o.beta1**given.step),
            beta2_power=np.float32(o.beta2**given.step),
            beta1=np.float32(o.beta1),
            beta2=np.float32(o.beta2),
            epsilon=np.float32(o.eps),
        )


def keras_optimizer(keras: Any, o: Any) -> Any:
    words: dict[str, Any] = {"learning_rate": o.lr, "weight_decay": o.weight_decay or None}
    if isinstance(o, SGD):
        return keras.optimizers.SGD(momentum=o.momentum, nesterov=o.nesterov, **words)
    if isinstance(o, Adagrad):
        words |= {"initial_accumulator_value": o.initial_accumulator, "epsilon": o.eps}
        return keras.optimizers.Adagrad(**words)
    kind = keras.optimizers.AdamW if isinstance(o, AdamW) else keras.optimizers.Adam
    return kind(beta_1=o.beta1, beta_2=o.beta2, epsilon=o.eps, **words)


@needs("tensorflow")
@pytest.mark.parametrize("optimizer", TENSORFLOW, ids=repr)
def test_a_thousand_steps_are_those_of_tensorflow(optimizer: Optimizer) -> None:
    import tensorflow as tf

    variable = tf.Variable(initial())
    slots = [tf.Variable(np.full(COUNT, s.initial, np.float32)) for s in optimizer.slots]
    way = [variable.numpy()]
    for given in steps(optimizer.lr):  # type: ignore[union-attr]
        apply_tensorflow(tf.raw_ops, variable, slots, given, optimizer)
        way.append(variable.numpy())
    assert difference(run(optimizer), way) < (EXACT if isinstance(optimizer, Adam) else CLOSE)


@needs("keras", "tensorflow")
@pytest.mark.parametrize("optimizer", KERAS, ids=repr)
def test_a_thousand_steps_are_those_of_keras(optimizer: Optimizer) -> None:
    keras = import_keras("tensorflow")
    theirs = keras_optimizer(keras, optimizer)
    variable = keras.Variable(initial())
    way = [variable.numpy()]
    for given in steps(optimizer.lr):  # type: ignore[union-attr]
        theirs.learning_rate = given.lr
        theirs.apply([given.gradient], [variable])
        way.append(variable.numpy())
    assert difference(run(optimizer), way) < EXACT
