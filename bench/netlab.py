"""What one TCP flow reaches between hosts with limited NICs (`reducer_tools.netlab`); root only.

python -m bench.netlab --hosts 4 --rate 1gbit     # calibrate: the rate of one TCP flow
python -m bench.netlab --clean                    # remove namespaces that a killed run left
"""

from __future__ import annotations

import argparse
import itertools
import socket
import subprocess
import sys
import time
from typing import IO

from reducer_tools.netlab import PAYLOAD_SHARE, Lab, LabError, Nic, clean, require_root


def calibrate(lab: Lab, sender: str, receiver: str, seconds: float = 2.0) -> float:
    """Bytes per second of payload that one TCP flow carries between two hosts."""
    module = [sys.executable, "-m", "bench.netlab"]
    sink = lab.popen(receiver, [*module, "--sink", lab.address(receiver)], stdout=subprocess.PIPE)
    try:
        assert sink.stdout is not None
        port = _line(sink.stdout)
        flood = f"{lab.address(receiver)}:{port}"
        source = lab.popen(sender, [*module, "--flood", flood, "--seconds", str(seconds)])
        rate = float(_line(sink.stdout))
        source.wait(30)
    finally:
        sink.kill()
        sink.wait()
        if sink.stdout is not None:
            sink.stdout.close()
    return rate


def _line(stream: IO[str]) -> str:
    line = stream.readline()
    if not line:
        raise LabError("a calibration program ended without an answer")
    return line.strip()


def _sink(host: str) -> None:
    with socket.create_server((host, 0)) as server:
        print(server.getsockname()[1], flush=True)
        peer, _ = server.accept()
        buffer = bytearray(1 << 20)
        total = peer.recv_into(buffer)
        # The bucket is full at first, so the first bytes pass faster than the rate.
        started, skipped = time.perf_counter(), 0
        while size := peer.recv_into(buffer):
            total += size
            if total < 4 << 20:
                started, skipped = time.perf_counter(), total
        print((total - skipped) / (time.perf_counter() - started), flush=True)
        peer.close()


def _flood(address: str, seconds: float) -> None:
    host, _, port = address.rpartition(":")
    data = bytes(1 << 16)
    until = time.perf_counter() + seconds
    with socket.create_connection((host, int(port))) as peer:
        while time.perf_counter() < until:
            peer.sendall(data)


def main() -> int:
    parser = argparse.ArgumentParser(description="Calibrate hosts with limited NICs.")
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--rate", default="1gbit")
    parser.add_argument("--congestion", default="cubic")
    parser.add_argument("--clean", action="store_true", help="remove what killed runs have left")
    parser.add_argument("--sink", help=argparse.SUPPRESS)
    parser.add_argument("--flood", help=argparse.SUPPRESS)
    parser.add_argument("--seconds", type=float, default=2.0)
    options = parser.parse_args()
    if options.sink:
        _sink(options.sink)
        return 0
    if options.flood:
        _flood(options.flood, options.seconds)
        return 0
    try:
        if options.clean:
            require_root()
            clean()
        else:
            _calibrate_all(options)
    except LabError as error:
        sys.exit(f"netlab: {error}")
    return 0


def _calibrate_all(options: argparse.Namespace) -> None:
    nic = Nic(options.rate)
    names = [f"h{number}" for number in range(options.hosts)]
    with Lab(dict.fromkeys(names, nic), options.congestion) as lab:
        print(f"{options.rate} NICs, {lab.congestion}; at best {PAYLOAD_SHARE:.1%} is payload")
        for sender, receiver in itertools.pairwise(names):
            rate = calibrate(lab, sender, receiver, options.seconds)
            nominal = nic.bytes_per_second or rate
            print(f"{sender} -> {receiver}: {rate / 1e6:8.1f} MB/s  {rate / nominal:6.1%}")


if __name__ == "__main__":
    sys.exit(main())
