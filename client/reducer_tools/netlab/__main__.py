"""`python -m reducer_tools.netlab` builds a lab of one host, or says why it cannot."""

from __future__ import annotations

from reducer_tools.netlab.trial import main

main()
