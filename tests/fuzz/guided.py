"""Fuzz by coverage: `python -m tests.fuzz.guided lane --seconds 60`, with atheris.

atheris keeps the inputs that reach new code of `reducer.wire` and `reducer.core`, and changes those
further. It sees Python only, so the sources run interpreted, also where they are compiled. The
invariant is that of `tests/fuzz/decoder.py`: what a peer sends is taken or refused with a peer
error, in a second and in bounded memory. What reached new code is kept in the corpus for the next
run; an input that breaks the invariant is written beside it: give its path to run it again. Without
atheris it ends with 2.
"""

from __future__ import annotations

import argparse
import gc
import resource
import sys
from collections.abc import Callable
from pathlib import Path
from types import FunctionType

from tests.support.interpreted import run_interpreted

MEGABYTES = 1_000  # beside what the process began with
NO_ATHERIS = 2


def decoder_target() -> Callable[[bytes], None]:
    """Frames, in pieces: the first byte says of which size."""
    from reducer.wire import messages
    from reducer.wire.decoder import Decoder
    from reducer.wire.errors import PEER_ERRORS
    from reducer.wire.header import HEADER_SIZE
    from tests.support.checksum import crc32c

    maps = {int(kind): message for message, kind in messages.KIND_OF.items()}

    def target(data: bytes) -> None:
        decoder = Decoder(crc32c, lambda header: memoryview(bytearray(header.length + HEADER_SIZE)))
        step = (1, 80, 4_096)[data[0] % 3] if data else 1
        stream = sealed(data[1:])
        try:
            for at in range(0, len(stream), step):
                for frame in decoder.feed(stream[at : at + step]):
                    message = maps.get(frame.header.kind)
                    if message is not None and frame.payload is not None:
                        messages.decode(message, frame.payload)
        except PEER_ERRORS:
            pass

    return target


def lane_target() -> Callable[[bytes], None]:
    """The core: what members send after their welcome; a healthy job beside them lives on."""
    from tests.fuzz.decoder import LaneFuzzer
    from tests.support.scripted import Scripted

    fuzzer = LaneFuzzer()

    def target(data: bytes) -> None:
        members = [
            Scripted(fuzzer.lane, rank, 2, job="hostile", run_id="run" if rank == 0 else "")
            for rank in range(2)
        ]
        half = len(data) // 2
        for member, part in zip(members, (data[:half], data[half:]), strict=True):
            member.session.send(sealed(part))
        for member in members:
            member.session.disconnect()
        fuzzer.lane.tick(5.1)  # then nobody comes back
        fuzzer.check()

    return target


def handshake_target() -> Callable[[bytes], None]:
    """A lane's side of mode psk: no bytes but a proof are believed."""
    from reducer.wire.errors import PEER_ERRORS
    from reducer.wire.handshake import NONCE_SIZE, LaneHandshake, extract
    from reducer.wire.header import PrefaceFlag, pack_preface
    from tests.support.handshakes import INCARNATION, MASTER

    extracted = extract(MASTER)
    preface = pack_preface(0, PrefaceFlag.PSK)

    def target(data: bytes) -> None:
        lane = LaneHandshake(extracted, preface, 0, INCARNATION, bytes(NONCE_SIZE))
        rest = memoryview(data)
        try:
            while rest:
                room = lane.get_buffer()
                n = min(len(room), len(rest))
                assert n > 0, "a handshake that takes no byte and does not end"
                room[:n] = rest[:n]
                rest = rest[n:]
                lane.received(n)
        except PEER_ERRORS:
            pass
        assert not lane.done, "bytes without a key were believed"

    return target


def sealed(data: bytes) -> bytes:
    """The same frames under right magics, lengths and CRCs: guessing these would find nothing.

    Each frame is a byte that gives the length of its payload, and 75 bytes of its header.
    """
    from reducer.wire.codes import PROTOCOL_MAJOR
    from reducer.wire.header import FRAME_MAGIC
    from tests.support.checksum import crc32c

    stream = b""
    while len(data) > FIELDS:
        length, fields, data = data[0], data[1 : FIELDS + 1], data[FIELDS + 1 :]
        payload, data = data[:length], data[length:]
        header = bytearray(FRAME_MAGIC + bytes([PROTOCOL_MAJOR]) + fields)
        header[64:68] = len(payload).to_bytes(4, "little")
        header[72:76] = (crc32c(payload) if payload else 0).to_bytes(4, "little")
        stream += bytes(header) + crc32c(bytes(header)).to_bytes(4, "little") + payload
    return stream + data


FIELDS = 71  # of a header, without its magic, version and CRC


def corpus(folder: Path, target: str) -> None:
    """The golden frames, as `sealed` takes them; an honest challenge."""
    from reducer.wire.header import HEADER_SIZE
    from tests.support.handshakes import MASTER, PythonSide
    from tests.vectors import regenerate

    if target == "handshake":
        (folder / "challenge").write_bytes(PythonSide(MASTER, "job", 0, bytes(32)).opening[16:])
        return
    for name, data in regenerate.frames().items():
        payload = data[HEADER_SIZE:][:255]
        known = bytes([len(payload)]) + data[5 : 5 + FIELDS] + payload
        (folder / name).write_bytes(known * 2 if target == "lane" else b"\x01" + known)


def watched() -> list[FunctionType]:
    """What new code is counted in.

    atheris can watch imports as well, but not those of an editable install's own loader.
    """
    return [
        found
        for found in gc.get_objects()
        if isinstance(found, FunctionType)
        and str(found.__module__).startswith(("reducer.core", "reducer.wire"))
    ]


TARGETS = {"decoder": decoder_target, "lane": lane_target, "handshake": handshake_target}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("target", choices=TARGETS)
    parser.add_argument("inputs", nargs="*", help="run these files alone")
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--corpus", type=Path, default=Path("build/fuzz"))
    parser.add_argument("--hang", type=int, default=1, help="seconds that an input may take")
    arguments = parser.parse_args()
    try:
        import atheris
    except ImportError:
        print("atheris is not installed: pip install atheris")
        return NO_ATHERIS
    run_interpreted()
    target = TARGETS[arguments.target]()
    for function in watched():
        atheris.instrument_func(function)
    folder = arguments.corpus / arguments.target
    folder.mkdir(parents=True, exist_ok=True)
    corpus(folder, arguments.target)
    # libFuzzer compares the peak of resident memory, which a program inherits through exec.
    inherited = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    options = [
        f"-max_total_time={arguments.seconds}", f"-timeout={arguments.hang}",
        f"-rss_limit_mb={inherited + MEGABYTES}", "-max_len=2048",
        f"-artifact_prefix={arguments.corpus}/",
    ]  # fmt: skip
    atheris.Setup([sys.argv[0], *options, *(arguments.inputs or [str(folder)])], target)
    atheris.Fuzz()  # ends the process
    return 0


if __name__ == "__main__":
    sys.exit(main())
