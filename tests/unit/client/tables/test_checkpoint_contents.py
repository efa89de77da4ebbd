"""What was saved is loaded again, bit for bit, and any reader of safetensors finds its tensors."""

from __future__ import annotations

import json
import os
import pickle
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file

from reducer.optimizers import SGD, Adagrad, AdamW, NoOptimizer, Optimizer
from reducer_client.tables.checkpoints import CheckpointError, TableImage, load, save
from tests.support.folders import folder_in_memory
from tests.support.table_images import TENSORS, contents, image

ADAGRAD = Adagrad(0.1, convention="tf")


@pytest.mark.parametrize(
    "optimizer",
    [
        NoOptimizer(),
        SGD(0.1, convention="keras"),
        SGD(0.1, convention="torch", momentum=0.9, nesterov=True),
        ADAGRAD,
        AdamW(1e-3, convention="torch"),
    ],
)
def test_a_load_gives_what_was_saved(tmp_path: Path, optimizer: Optimizer) -> None:
    state = {"versions": [3, 4], "lr": 0.1, "step": 2**60, "clocks": {"worker ü": None, "b": True}}
    saved = [
        image(1, "net", optimizer=optimizer, mode={"mode": "ssp", "bound": 3}, state=state),
        image(2, "other", (("w", (2, 0, 3)), ("ü/x:y", (1, 1, 7)))),
    ]
    path = save(tmp_path, 300, saved, job="digits")
    assert path == tmp_path / "step-300"
    loaded = load(tmp_path)
    assert contents(loaded) == contents(saved) == contents(load(tmp_path, 300))
    loaded[0].parameters[:] = 0.0  # the caller's own
    assert contents(load(tmp_path)) == contents(saved)
    assert sorted(os.listdir(tmp_path)) == [".lock", "latest", "step-300"]
    assert json.loads((path / "manifest.json").read_text())["job"] == "digits"


def test_any_reader_finds_tensors_by_name(tmp_path: Path) -> None:
    table = image(1, optimizer=ADAGRAD)
    path = save(tmp_path, 1, [table])
    found = load_file(path / "shards-0.safetensors")
    assert sorted(found) == sorted(
        f"net/{name}{slot}" for name, _ in TENSORS for slot in ("", ":accumulator")
    )
    weight = found["net/layer1.weight"]
    assert weight.shape == (5, 3) and weight.tobytes() == table.parameters[:15].tobytes()
    bias = found["net/layer1.bias:accumulator"]
    assert bias.tobytes() == table.slots["accumulator"][15:18].tobytes()


def test_files_have_a_size_limit_that_only_a_larger_tensor_exceeds(tmp_path: Path) -> None:
    tables = [image(1, "a", optimizer=NoOptimizer()), image(2, "b", optimizer=NoOptimizer())]
    path = save(tmp_path, 1, tables, file_limit=24)
    files = [load_file(path / f"shards-{i}.safetensors") for i in range(4)]
    assert [sorted(file) for file in files] == [
        ["a/layer1.weight"],
        ["a/layer1.bias", "a/scale"],
        ["b/layer1.weight"],
        ["b/layer1.bias", "b/scale"],
    ]
    assert contents(load(tmp_path)) == contents(tables)


def test_files_have_the_mode_that_the_umask_says(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        path = save(tmp_path, 1, [image()])
    finally:
        os.umask(before)
    modes = {stat.S_IMODE(file.stat().st_mode) for file in path.iterdir()}
    assert modes == {0o640} and stat.S_IMODE(path.stat().st_mode) == 0o750


_NAMES = st.text(st.characters(exclude_categories=("Cs",)), min_size=1, max_size=8)
_SHAPES = st.lists(st.integers(0, 4), max_size=3).map(tuple)
_PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=("Cs",)), max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_NAMES, inner, max_size=3),
    max_leaves=8,
)  # fmt: skip


@settings(max_examples=25)
@given(
    st.dictionaries(_NAMES, _SHAPES, max_size=4),
    _NAMES,
    st.dictionaries(_NAMES, _PLAIN, max_size=3),
    st.integers(1, 200),
)
def test_any_table_comes_back(
    tensors: dict[str, tuple[int, ...]], name: str, state: dict[str, Any], limit: int
) -> None:
    with folder_in_memory() as folder:
        table = image(1, name, tuple(tensors.items()), ADAGRAD, state=state)
        # A tensor "a:accumulator" and the slot of a tensor "a" would have one name.
        names = [name for name, _ in table.description.places()]
        assume(len(set(names)) == len(names))
        save(folder, 1, [table], file_limit=limit)
        assert contents(load(folder)) == contents([table])


def test_tensors_are_in_the_table_in_the_given_order(tmp_path: Path) -> None:
    tensors = (("z", (2,)), ("a", (1,)))
    table = TableImage("t", tensors, NoOptimizer(), np.array([1, 2, 3], np.float32))
    save(tmp_path, 1, [table])
    assert load(tmp_path)[0].tensors == tensors
    assert load(tmp_path)[0].parameters.tolist() == [1, 2, 3]
    assert load_file(tmp_path / "step-1" / "shards-0.safetensors")["t/a"].tolist() == [3]


def _table(**fields: Any) -> TableImage:
    given: dict[str, Any] = {
        "name": "net", "tensors": (("w", (2,)),), "optimizer": NoOptimizer(),
        "parameters": np.zeros(2, np.float32), **fields,
    }  # fmt: skip
    return TableImage(**given)


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"name": ""}, "the name of a table must be a text that is not empty, got ''"),
        ({"name": "\ud800"}, "text that UTF-8 can hold"),
        ({"tensors": (("w", (1,)), ("w", (1,)))}, "table 'net': the tensor 'w' is given twice"),
        ({"tensors": (("w", (-2,)),)}, "a size of 'w' must be an integer from 0 on, got -2"),
        ({"tensors": (("w", (2.0,)),)}, "a size of 'w' must be an integer from 0 on, got 2.0"),
        ({"tensors": ("w",)}, "expected pairs of a tensor's name and shape, got 'w'"),
        ({"tensors": (("w", (3,)),)}, r"array of shape \(3,\), got float32 of shape \(2,\)"),
        ({"parameters": np.zeros(2)}, "parameters must be a .* got float64 of shape"),
        ({"parameters": np.zeros(4, np.float32)[::2]}, "not contiguous"),
        ({"parameters": [0.0, 0.0]}, "got list"),
        ({"slots": {"m": np.zeros(2, np.float32)}}, "none has the slots none, got the slots m"),
        ({"optimizer": ADAGRAD}, "adagrad has the slots accumulator, got the slots none"),
        (
            {"optimizer": ADAGRAD, "slots": {"accumulator": np.zeros(3, np.float32)}},
            "table 'net': slot 'accumulator' must be",
        ),
        ({"state": {"lr": float("nan")}}, "state must consist of plain JSON values"),
        ({"state": {"a": (1, 2)}}, "state must be a mapping of plain JSON values"),
        ({"mode": {1: 2}}, "mode must be a mapping of plain JSON values"),
        ({"state": {"a": {1}}}, "set is not JSON serializable"),
    ],
)
def test_a_table_that_no_checkpoint_can_hold_is_refused(fields: dict[str, Any], error: str) -> None:
    with pytest.raises(CheckpointError, match=error) as caught:
        _table(**fields)
    assert caught.value.reason == "argument"


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda path: save(path, 1, []), "needs at least one table"),
        (lambda path: save(path, 1.5, [_table()]), "step must be an integer from 0 on, got 1.5"),
        (lambda path: save(path, "3", [_table()]), "step must be an integer from 0 on, got '3'"),
        (lambda path: save(path, True, [_table()]), "got True"),
        (lambda path: save(path, -1, [_table()]), "got -1"),
        (lambda path: load(path, 1.5), "step must be an integer from 0 on, got 1.5"),
        (lambda path: save(path, 1, [_table(), _table()]), "two tables have the name 'net'"),
        (
            lambda path: save(
                path, 1, [_table(name="a/b"), _table(name="a", tensors=(("b/w", (2,)),))]
            ),
            "table 'a': the files would have two tensors 'a/b/w'",
        ),
        (lambda path: save(path, 1, [_table()], keep=0), "keep must be an integer from 1 on"),
        (lambda path: save(path, 1, [_table()], file_limit=0), "file_limit must be"),
        (lambda path: save(path, 1, [_table()], job=3), "job must be a text or None, got 3"),
    ],
    ids=range(11),
)
def test_bad_arguments_are_refused_before_anything_is_written(
    tmp_path: Path, call: Callable[[Path], Any], error: str
) -> None:
    with pytest.raises(CheckpointError, match=error):
        call(tmp_path)
    assert not os.listdir(tmp_path)


def test_steps_may_be_integers_of_numpy(tmp_path: Path) -> None:
    assert save(tmp_path, np.int64(7), [_table()]).name == "step-7"
    assert load(tmp_path, np.int32(7))


def test_an_error_can_leave_its_process() -> None:
    error = CheckpointError("text", reason="damaged", step=3, good_step=2)
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.reason, again.step, again.good_step) == ("text", "damaged", 3, 2)
