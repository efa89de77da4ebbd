"""Specification files are read or refused, and none ends in a traceback."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from hypothesis import example, given, settings
from hypothesis import strategies as st

from reducer_tools.cli import main
from reducer_tools.cli.documents import DocumentError, parse_document, write_yaml


def plan(path: Path, data: bytes, option: str = "--spec") -> Result:
    path.write_bytes(data)
    rates = ("--workers", "4", "--worker-gbps", "1", "--reducer-gbps", "1")
    return CliRunner().invoke(main, ["plan", *rates, option, str(path)])


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{"a": [1, 2.5, null, true, "x"]}', {"a": [1, 2.5, None, True, "x"]}),
        ('// first\n{\n  // more\n  "a": "b // c"\n}', {"a": "b // c"}),
        ("a: 1\nb: [x, 'y']\n", {"a": 1, "b": ["x", "y"]}),
        ("when: 2026-11-22\nnever: 2026-99-99\n", {"when": "2026-11-22", "never": "2026-99-99"}),
        ("run: |\n  // no comment\n", {"run": "// no comment\n"}),
        ("", None),
    ],
)
def test_what_is_read(text: str, value: Any) -> None:
    assert parse_document(text) == value


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ('{"a": 1, "b": 2, "a": 3}', "expected each name once, got 'a' twice in one mapping"),
        ("a: 1\nb: 2\na: 3\n", "line 3, column 1: expected each name once, got 'a' twice"),
        ("a: &x [1]\nb: *x\n", r"line 2, column 4: expected no alias, got \*x; write it out"),
        (
            "a: !!python/object/apply:os.system [id]\n",
            "line 1, column 4: expected no tag",
        ),
        ("a: !!binary aGk=\n", "expected no tag"),
        ("a: [1\n", "line 2, column 1: "),
        ("a: b: c\n", "line 1, column 5: "),
        ("? [a]\n: 1\n", "unhashable"),
        ('{"a": NaN}', "expected JSON, got NaN"),
        ('{"a": 1,}', "line 1, column [89]: expected JSON, got an error"),  # 8 since Python 3.13
        ('{"a": {...}}', "replace ... by a value"),
        ("[" * 100_000, "expected fewer levels of nesting"),
        ("a: " + "[" * 2_000, "expected fewer levels of nesting"),
        ("a: 0b_\n", "expected YAML, got an error"),
        (f"a: {'9' * 5000}\n", "expected YAML, got an error"),
        ('a: "\\UFFFFFFFF"\n', "expected YAML, got an error"),
        ("a: \0\n", "special characters"),
    ],
    ids=range(17),
)
def test_what_is_refused(text: str, error: str) -> None:
    with pytest.raises(DocumentError, match=error):
        parse_document(text)


def test_a_file_of_many_aliases_of_aliases_is_refused() -> None:
    lines = ["a0: &a0 [x, x]", *(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]" for n in range(1, 40))]
    with pytest.raises(DocumentError, match="expected no alias"):
        parse_document("\n".join(lines))


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b"\xff\xfe\x00", "expected UTF-8"),
        (b"a: " + b"x" * (256 << 10), "expected at most 262,144 bytes, got more"),
        (b"{", "line 1, column 2: expected JSON"),
        (b"", "document: expected a mapping, got none"),
    ],
)
def test_a_bad_file_is_named(tmp_path: Path, data: bytes, error: str) -> None:
    result = plan(tmp_path / "job.yaml", data)
    assert result.exit_code == 2 and not isinstance(result.exception, ValueError)
    assert f"job.yaml: {error}" in result.output


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b"[m]\ngbps = 'fast'\n", "m.gbps: expected a number, got 'fast'"),
        (b"[m]\nprice = 1\n", "m.gbps: expected Gbit/s above 0, at most 1e6, got none"),
        (b"[m]\ngbps = 0\n", "m.gbps: expected Gbit/s above 0, at most 1e6, got 0"),
        (b"[m]\ngbps = nan\n", "m.gbps: expected Gbit/s above 0, at most 1e6, got nan"),
        (
            b"[m]\ngbps = 1\nprice = -1\n",
            "m.price: expected a price for an hour, from 0 to 1e9, got -1",
        ),
        (b"[m]\ngbps = 1\nprise = 1\n", "m.prise: expected price, got 'prise'"),
        (b"m = 1\n", "m: expected a mapping, got 1"),
        (b"[m\n", "Expected ']'"),
    ],
)
def test_a_bad_table_of_machines_is_named(tmp_path: Path, data: bytes, error: str) -> None:
    result = plan(tmp_path / "machines.toml", data, "--machines")
    assert result.exit_code == 2
    assert f"machines.toml: {error}" in result.output


def test_the_standard_input_is_a_file() -> None:
    text = "trainingInput: {scaleTier: STANDARD_1}\n"
    result = CliRunner().invoke(main, ["plan", "--spec", "-"], input=text)
    assert result.exit_code == 0 and "n1-highcpu-8" in result.output


def read_or_refuse(text: str) -> None:
    with suppress(DocumentError):
        parse_document(text)


@settings(deadline=None)
@given(st.text())
@example("{\\")
@example("[//\n")
@example("- - - ? - : -")
@example("<<: {a: 1}")
@example("=: =")
def test_any_text_is_read_or_refused(text: str) -> None:
    read_or_refuse(text)


@settings(deadline=None)
@given(st.text(alphabet="ab:-?[]{}&*!|>'\"%@`#, \n\t0x._~<=/\\", max_size=60))
def test_any_text_of_signs_is_read_or_refused(text: str) -> None:
    read_or_refuse(text)


@settings(deadline=None)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers(-(10**9), 10**9) | st.text(),
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
        max_leaves=12,
    )
)
def test_what_is_written_as_yaml_reads_the_same(value: Any) -> None:
    twice = {"one": value, "other": value}
    assert parse_document(write_yaml(twice)) == twice
