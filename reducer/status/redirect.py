"""How the port for workers sends an HTTP client to the metrics port: both ends of the answer."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:  # the daemon needs no parser of mail
    from email.message import Message

# How an HTTP client begins. A worker begins with the magic of a preface.
REQUEST = b"GET /"
_HEADER = "Reducer-Metrics"


def redirect_to(metrics_address: str) -> bytes:
    """The answer of the port for workers. It tells no more than a scan of the ports would."""
    body = (
        f"This port is for workers. The status page of this reducer is at {metrics_address} "
        "(--metrics-host, --metrics-port).\n"
    )
    head = (
        "HTTP/1.1 421 Misdirected Request\r\n"
        f"{_HEADER}: {metrics_address}\r\n"
        "Content-Type: text/plain\r\n"
        f"Content-Length: {len(body)}\r\n"
        "Connection: close\r\n\r\n"
    )
    return (head + body).encode()


def redirected_to(headers: Message) -> str:
    """The address of the metrics in the headers of an answer; "" if there is none."""
    return str(headers.get(_HEADER, ""))
