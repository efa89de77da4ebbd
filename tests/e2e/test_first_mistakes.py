"""What a newcomer reads: no reducer is there, or the address is that of the metrics."""

from __future__ import annotations

import logging

import pytest

import reducer_client
from reducer_client import AuthenticationError, ProtocolError, ReducerUnavailableError
from tests.support.certs import Files
from tests.support.cluster import Daemon
from tests.support.ports import free_port


def _connect(address: str, **settings: str | float) -> None:
    reducer_client.connect(address, job="first", rank=0, world_size=1, **settings)  # type: ignore[arg-type]


def test_a_worker_says_for_whom_it_waits(caplog: pytest.LogCaptureFixture) -> None:
    address = f"127.0.0.1:{free_port()}"
    with pytest.raises(ReducerUnavailableError, match="no reducer answered"):
        _connect(address, connect_timeout=4.2)
    ((logger, level, text),) = caplog.record_tuples
    assert (logger, level) == ("reducer_client", logging.WARNING)
    assert text.startswith(f"job 'first' waits for reducer {address} (")
    assert "Connection refused" in text
    assert text.endswith("; 2 s left")


def test_a_metrics_port_is_recognised_in_every_mode(key_file: str, certs: Files) -> None:
    with Daemon() as daemon:
        address = f"127.0.0.1:{daemon.metrics_port}"
        files = {"tls_cert": certs.cert, "tls_key": certs.key, "tls_ca": certs.ca}
        for error, settings in (
            (ProtocolError, {}),
            (AuthenticationError, {"key_file": key_file}),
            (AuthenticationError, files),
        ):
            with pytest.raises(error, match="answers HTTP: it is no port for workers"):
                _connect(address, connect_timeout=5.0, **settings)
