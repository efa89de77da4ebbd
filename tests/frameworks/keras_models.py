"""Keras models for digits, and how they are fitted."""

from __future__ import annotations

from typing import Any

import numpy as np

Data = tuple[Any, Any]


def make_model(keras: Any, seed: int, hidden: int = 0) -> Any:
    """Scores of the ten digits, with a layer before them or not."""
    keras.utils.set_random_seed(seed)
    before = [keras.layers.Dense(hidden, activation="relu")] if hidden else []
    return keras.Sequential([keras.Input((64,)), *before, keras.layers.Dense(10)])


def fit(keras: Any, model: Any, optimizer: Any, data: Data, batch: int, **options: Any) -> Any:
    """In order and without XLA but for JAX; the history. Options are those of compile and fit."""
    compiling = {"jit_compile": keras.backend.backend() == "jax"}
    compiling |= {
        name: options.pop(name)
        for name in ("run_eagerly", "jit_compile", "steps_per_execution") & options.keys()
    }
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, metrics=["accuracy"], **compiling)
    return model.fit(*data, batch_size=batch, shuffle=False, verbose=0, **options).history


def make_words_model(keras: Any) -> Any:
    """A model with an Embedding, whose gradient names the rows of these words alone."""
    keras.utils.set_random_seed(4)
    layers = [keras.Input((64,), dtype="int32"), keras.layers.Embedding(17, 4)]
    return keras.Sequential([*layers, keras.layers.Flatten(), keras.layers.Dense(10)])


def train_on_words(
    keras: Any, optimizer: Any, data: Data, batch: int, model: Any = None
) -> list[Any]:
    """The weights of a model with an Embedding.

    The optimizer must not clip: Keras' norm of slices counts each slice of a row by itself.
    """
    trained = make_words_model(keras) if model is None else model
    fit(keras, trained, optimizer, ((data[0] * 16).astype(np.int32), data[1]), batch)
    weights: list[Any] = trained.get_weights()
    return weights
