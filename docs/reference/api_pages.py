"""Which modules the pages of the Python API describe."""

from __future__ import annotations

from typing import Final, NamedTuple


class Page(NamedTuple):
    """A page: its title, and the public names of each module; () stands for its ``__all__``."""

    title: str
    modules: dict[str, tuple[str, ...]]


PAGES: Final = {
    "api.md": Page("Python: the client", {"reducer_client": ()}),
    "api-torch.md": Page(
        "Python: PyTorch",
        {
            "reducer_client.torch": (),
            "reducer_client.torch.fsdp": ("attach_fsdp",),
            "reducer_client.torch.lightning": ("DiLoCo",),
        },
    ),
    "api-frameworks.md": Page(
        "Python: Keras, TensorFlow, JAX, Ray",
        {
            "reducer_client.keras": (),
            "reducer_client.tensorflow": (),
            "reducer_client.jax": (),
            "reducer_client.ray": (),
        },
    ),
    "api-horovod.md": Page(
        "Python: Horovod's API",
        {
            "reducer_client.horovod": (),
            "reducer_client.horovod.torch.elastic": (),
            "reducer_client.horovod.tensorflow": (),
            "reducer_client.horovod.keras": (),
            "reducer_client.horovod.keras.callbacks": (),
        },
    ),
    "api-elastic.md": Page("Python: elastic jobs", {"reducer_client.elastic": ()}),
    "api-tables.md": Page(
        "Python: parameter servers",
        {
            "reducer_client.tables": (),
            "reducer.optimizers": ("SGD", "Adagrad", "Adam", "AdamW", "NoOptimizer"),
            "reducer_client.tables.checkpoints": (),
            "reducer_client.tables.roles": ("Role", "add_flags", "find_role"),
        },
    ),
    "api-registry.md": Page(
        "Python: registries",
        {
            "reducer_client.registry.interface": ("Registry", "Record", "Lease"),
            "reducer_client.registry.daemon": ("DaemonRegistry",),
            "reducer_client.registry.memory": ("MemoryRegistry",),
            "reducer_client.torch.store_registry": ("StoreRegistry",),
        },
    ),
}
