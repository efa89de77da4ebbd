"""The rooms of the client's engine: an include goes down to a lower room, or stays in its room."""

import re
from pathlib import Path

import pytest

ENGINE = Path(__file__).parents[3] / "client" / "engine"
# Each room, and the rooms that its files may include.
BELOW = {
    "codec": ("native",),  # reducer/native
    "crypto": ("codec",),
    "protocol": ("codec",),
    "io": ("codec", "crypto", "protocol"),
    "python": ("codec", "crypto", "protocol", "io"),
}


def test_each_source_is_in_a_room() -> None:
    assert {path.name for path in ENGINE.iterdir()} == {"CMakeLists.txt", "tests", *BELOW}


@pytest.mark.parametrize("room", BELOW)
def test_includes_go_down(room: str) -> None:
    wrong = [
        f"{source.name}: {included}"
        for source in (ENGINE / room).iterdir()
        for included in re.findall(r'^#include "(.*)"', source.read_text(), re.MULTILINE)
        if included.partition("/")[0] not in (room, *BELOW[room])
    ]
    assert wrong == []


def test_the_protocol_has_no_connections() -> None:
    """Loops own sockets and bytes in flight; the protocol gives loops frames and orders."""
    forbidden = re.compile(
        r'#include (?:"io/|<(?:sys|netinet|arpa)/|<unistd\.h>)|\b(?:Receiver|Sender|iovec)\b'
    )
    wrong = [
        f"{source.name}: {found}"
        for source in (ENGINE / "protocol").iterdir()
        for found in forbidden.findall(source.read_text())
    ]
    assert wrong == []
