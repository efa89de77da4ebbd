"""Frameworks as ranks import them: on CPUs, with one thread each, and quiet; and their errors."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from typing import Any

import pytest


def import_jax(devices: int = 1) -> tuple[Any, Any]:
    """JAX on so many devices of the CPU, and our module for it."""
    os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={devices}"
    os.environ["JAX_PLATFORMS"] = "cpu"
    return importlib.import_module("jax"), importlib.import_module("reducer_client.jax")


def import_tensorflow() -> tuple[Any, Any]:
    """TensorFlow, and our module for it."""
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    tf = importlib.import_module("tensorflow")
    return tf, importlib.import_module("reducer_client.tensorflow")


def import_keras(backend: str) -> Any:
    """Keras on a backend; nothing else of it may have been imported."""
    os.environ["KERAS_BACKEND"] = backend
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    if backend == "torch":
        importlib.import_module("torch").set_num_threads(1)
    keras: Any = importlib.import_module("keras")
    assert keras.backend.backend() == backend
    return keras


def text_of(kinds: type[Exception] | tuple[type[Exception], ...], call: Callable[[], Any]) -> str:
    """Of the error that the call must raise."""
    with pytest.raises(kinds) as caught:
        call()
    return str(caught.value)
