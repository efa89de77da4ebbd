"""JAX: one line in a jitted step reduces the gradients."""

from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
from digits import load, report

import reducer_client
from reducer_client.jax import all_reduce_tree, broadcast_tree

EPOCHS, BATCH, RATE = 10, 24, 0.3


def init(seed: int) -> list[dict[str, jax.Array]]:
    sizes, key = (64, 256, 10), jax.random.key(seed)
    return [
        {"w": jax.random.normal(key, (a, b)) / a**0.5, "b": jnp.zeros(b)}
        for a, b in pairwise(sizes)
    ]


def apply(parameters: list[dict[str, jax.Array]], images: jax.Array) -> jax.Array:
    first, last = parameters
    return jax.nn.relu(images @ first["w"] + first["b"]) @ last["w"] + last["b"]


def loss_of(parameters, images, labels):
    chances = jax.nn.log_softmax(apply(parameters, images))
    return -jnp.take_along_axis(chances, labels[:, None], 1).mean()


def train(group: reducer_client.Group, images: np.ndarray, labels: np.ndarray):
    @jax.jit
    def step(parameters, images, labels):
        loss, gradients = jax.value_and_grad(loss_of)(parameters, images, labels)
        gradients = all_reduce_tree(gradients, group)  # <- the mean over all ranks
        return loss, jax.tree.map(lambda p, g: p - RATE * g, parameters, gradients)

    parameters = broadcast_tree(init(seed=group.rank), group)  # <- rank 0's values
    for epoch in range(EPOCHS):
        order = np.random.default_rng(epoch).permutation(len(labels))
        mine = order[group.rank :: group.world_size]
        for batch in np.split(mine, len(mine) // BATCH):
            loss, parameters = step(parameters, images[batch], labels[batch])
        if group.rank == 0 and epoch % 5 == 4:
            print(f"epoch {epoch + 1} of {EPOCHS}: loss {loss:.4f}", flush=True)
    return parameters


def main() -> None:
    training, (images, labels) = load()
    with reducer_client.connect(job="jax") as group:  # <- addresses and rank from the environment
        parameters = train(group, *training)
        if group.rank == 0:
            right = (apply(parameters, images).argmax(1) == labels).mean()
            report(float(right), group.stats())


if __name__ == "__main__":
    main()
