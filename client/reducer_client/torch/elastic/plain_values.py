"""State dicts as plain values and arrays, and back.

Each value becomes a pair of its kind and its content, because msgpack keeps neither tuples nor
dicts whose keys are no texts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from reducer_client.arrays import Array
from reducer_client.torch.tensors.host import as_stored, from_stored
from reducer_client.torch.tensors.memory import resolved, with_memory

_PLAIN = (bool, int, float, str, bytes, type(None))
_INLINE = 64  # bytes of a tensor that travels with the plain values, such as a count of steps


def flatten(value: Any, path: str, arrays: dict[str, Array]) -> list[Any]:
    """The value as plain values. Puts tensors and NumPy arrays into ``arrays``, named by path.

    Raises TypeError for values of other types.
    """
    if isinstance(value, _PLAIN):
        return ["plain", value]
    if isinstance(value, np.generic):
        return ["plain", value.item()]
    if isinstance(value, torch.Tensor):
        return _flatten_tensor(value, path, arrays)
    if isinstance(value, np.ndarray):
        arrays[path] = np.ascontiguousarray(value)
        return ["array", path]
    if isinstance(value, list | tuple):
        kind = "tuple" if isinstance(value, tuple) else "list"
        return [kind, [flatten(v, f"{path}.{i}", arrays) for i, v in enumerate(value)]]
    if isinstance(value, Mapping):
        kind = "counter" if isinstance(value, Counter) else "dict"
        return [kind, [[flatten(k, path, arrays), flatten(v, f"{path}.{k}", arrays)]
                       for k, v in value.items()]]  # fmt: skip
    raise TypeError(
        f"{path} is a {type(value).__name__}: a worker that joins can take over tensors, arrays, "
        "numbers, texts, None, and lists, tuples and dicts of these"
    )


def restore(flat: list[Any], arrays: Mapping[str, Array]) -> Any:
    """The value of `flatten`. Tensors are on the CPU, and use the memory of the arrays."""
    kind, content, *more = flat
    if kind == "plain":
        return content
    if kind == "array":
        return arrays[content]
    if kind == "tensor":
        return from_stored(arrays[content], more[0])
    if kind == "bytes":
        name, dtype, shape = more
        array = np.frombuffer(bytearray(content), dtype).reshape(shape)
        return from_stored(array, name)
    if kind in ("list", "tuple"):
        values = [restore(each, arrays) for each in content]
        return values if kind == "list" else tuple(values)
    pairs = {restore(key, arrays): restore(each, arrays) for key, each in content}
    return Counter(pairs) if kind == "counter" else pairs


def _flatten_tensor(tensor: torch.Tensor, path: str, arrays: dict[str, Array]) -> list[Any]:
    dtype = str(tensor.dtype).removeprefix("torch.")
    array = as_stored(resolved(with_memory(tensor)).detach().to("cpu").contiguous())
    if array.nbytes <= _INLINE:
        return ["bytes", array.tobytes(), dtype, array.dtype.str, list(array.shape)]
    arrays[path] = array
    return ["tensor", path, dtype]
