"""The version of the wire protocol as text. Releases that share the number before the dot work
together.

The version of the release is ``reducer.__version__``, where the build and the client read it.
"""

from __future__ import annotations

from typing import Final

from reducer.wire.codes import PROTOCOL_MAJOR, PROTOCOL_MINOR

PROTOCOL_VERSION: Final = f"{PROTOCOL_MAJOR}.{PROTOCOL_MINOR}"
