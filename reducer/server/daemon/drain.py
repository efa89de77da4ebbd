"""The steps by which the daemon drains, after SIGTERM or SIGINT.

Before them, `/readyz` says 503: load balancers and probes choose other reducers. What a lane does
in step 2 is in `reducer/core/lane_end.py`.
"""

from __future__ import annotations

import asyncio
import logging

from reducer.server.daemon.acceptor import Acceptor
from reducer.server.daemon.admin import Admin
from reducer.server.daemon.lanes import LaneGroup

logger = logging.getLogger("reducer.server")

# Time beyond the lanes' own deadline, for flushing, lingering sockets and process exit.
_GRACE_SECONDS = 5.0


async def drain(
    acceptor: Acceptor, lanes: LaneGroup, admin: Admin, timeout: float, force: asyncio.Event
) -> bool:
    """End the lanes and the metrics port. Open rounds have `timeout` seconds, or until `force` is
    set.

    Returns whether every lane has drained in time.
    """
    # 1. Stop accepting, and close sockets without a preface.
    acceptor.stop()
    # 2. Lanes send GOAWAY, let open rounds finish by the deadline, and close.
    logger.info("draining: open rounds have %g s", timeout)
    lanes_drain = asyncio.create_task(lanes.drain(timeout + _GRACE_SECONDS))
    forced = asyncio.create_task(force.wait())
    await asyncio.wait({lanes_drain, forced}, return_when=asyncio.FIRST_COMPLETED)
    for task in (lanes_drain, forced):
        task.cancel()
    (how, _) = await asyncio.gather(lanes_drain, forced, return_exceptions=True)
    if isinstance(how, Exception):
        logger.error("the drain has failed", exc_info=how)
    # 3. End the rest, and log the reason.
    await admin.stop()
    await lanes.close()
    if force.is_set():
        logger.warning("a second signal came: ended without finishing open rounds")
        return False
    if failure := lanes.failure():
        logger.error("the daemon ends without having drained: %s", failure)
        return False
    logger.info("drained")
    return True
