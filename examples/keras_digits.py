"""Keras 3: `fit` on several ranks, with a distributed optimizer and two callbacks.

KERAS_BACKEND may be tensorflow, jax or torch.
"""

import keras
from digits import load, report

import reducer_client
from reducer_client.keras import BroadcastGlobalVariables, DistributedOptimizer, MetricAverage


def make_model() -> keras.Model:
    layers = [keras.layers.Dense(256, activation="relu"), keras.layers.Dense(10)]
    return keras.Sequential([keras.Input((64,)), *layers])


def main() -> None:
    (images, labels), test = load()
    with reducer_client.connect(job="keras") as group:  # <- addresses and rank from the environment
        keras.utils.set_random_seed(group.rank)
        model = make_model()
        model.compile(
            DistributedOptimizer(keras.optimizers.Adam(2e-3), group),  # <- the mean of gradients
            keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"],
            jit_compile=False,  # <- compiled TensorFlow cannot call the reducers
        )
        model.fit(
            images[group.rank :: group.world_size],
            labels[group.rank :: group.world_size],
            batch_size=24,
            epochs=8,
            verbose=2 if group.rank == 0 else 0,
            # <- start with rank 0's weights, and average the metrics over the ranks
            callbacks=[BroadcastGlobalVariables(group), MetricAverage(group)],
        )
        if group.rank == 0:
            _, accuracy = model.evaluate(*test, verbose=0)
            report(accuracy, group.stats())


if __name__ == "__main__":
    main()
