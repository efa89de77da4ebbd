"""Optimizers as data: a name, numbers and a convention, but never code.

An optimizer says which rule updates the parameters (``rule``), which arrays are its state
(``slots``), and which scalars the rule takes in a given step (``scalars``). ``reducer.kernels``
computes the rule. This room does no arithmetic on arrays, and knows no table and no peer.

The convention has no default: the same numbers mean different steps in PyTorch, TensorFlow and
Keras. With lr 1 and the defaults for eps, Adam's first step for a gradient of 1e-7 is 0.91 in
PyTorch, 0.24 in TensorFlow and 0.03 in Keras.
"""

from __future__ import annotations

from reducer.optimizers.adagrad import Adagrad
from reducer.optimizers.adam import Adam, AdamW
from reducer.optimizers.checks import Convention, OptimizerError
from reducer.optimizers.fields import Optimizer, from_fields, to_fields
from reducer.optimizers.none import NoOptimizer
from reducer.optimizers.rules import SCALARS, SLOT_COUNTS, Rule, Scalars, Slot
from reducer.optimizers.sgd import SGD

__all__ = [
    "SCALARS",
    "SGD",
    "SLOT_COUNTS",
    "Adagrad",
    "Adam",
    "AdamW",
    "Convention",
    "NoOptimizer",
    "Optimizer",
    "OptimizerError",
    "Rule",
    "Scalars",
    "Slot",
    "from_fields",
    "to_fields",
]
