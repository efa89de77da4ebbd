"""ROUNDS.md shows the table of transitions.

`python -m tests.unit.core.rounds.test_rounds_doc` writes it.
"""

from __future__ import annotations

from pathlib import Path

import reducer.core.rounds.round as rounds

PATH = Path(__file__).parents[4] / "reducer/core/ROUNDS.md"
INTRO = """\
# The life of a chunk on its owner

Written from `TRANSITIONS` in `rounds/round.py` by
`python -m tests.unit.core.rounds.test_rounds_doc`.

"""
LAWS = """
What holds at every moment:

1. A rank counts once: a second copy of its contribution is dropped and counted if the CRC is the
   same, and ends the run if the CRC differs.
2. Ranks are folded in rank order, at least four at a time, and the remaining ones after the last
   contribution. The result is therefore a function of the contributions alone. Only sums and
   means of float16, which are exact in float64 (up to 8,192 ranks), are folded in any order. If
   the parts that are ready have more than 16 MiB together, they are folded in several turns of
   their job.
3. An accumulator is taken only when the parts that it replaces are together at least as large: a
   chunk never holds more than its ranks have reserved.
4. A result is kept until every rank holds it. Only then is its buffer used again.
5. No result of a round with two descriptors is sent. What was folded of it is dropped.
6. A part leaves the chunk only after the shell has reported that a kernel has read it (Folded,
   Reduced). If a Fold, a Finish or any other output fails, the lane drops the run: no sum may
   lack a part. The workers connect again, the run forms here anew, and they send what is not
   stable.
"""


def text() -> str:
    lines = ["```mermaid", "stateDiagram-v2", "    [*] --> COLLECTING"]
    lines += [
        f"    {before.name} --> {after.name}: {step.name}"
        for (before, step), after in rounds.TRANSITIONS.items()
    ]
    lines += ["    STABLE --> [*]", "    FAILED --> [*]", "```", ""]
    return INTRO + "\n".join(lines) + LAWS


def test_the_diagram_is_the_table() -> None:
    assert PATH.read_text() == text()


if __name__ == "__main__":
    PATH.write_text(text())
