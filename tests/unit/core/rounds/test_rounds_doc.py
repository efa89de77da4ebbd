"""ROUNDS.md shows the table as it is.

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

1. A rank counts once: a second copy of its contribution is dropped and counted (same CRC), or
   stops the job (another one).
2. Ranks are folded in rank order, at least four at a time and the rest with the last one, so the
   result is a function of the contributions alone. Only sums of float16 (exact in float64) are
   folded in any order. Parts of more than 16 MiB are folded in several turns of their job.
3. An accumulator is opened only in place of parts that are as large: a chunk never holds more
   than its ranks have reserved.
4. A result is kept until every rank holds it, and its buffer is used again only then.
5. Nothing of a round with two descriptors is ever summed or sent.
6. A part leaves the chunk only when the shell has told that a kernel has read it (Folded,
   Reduced). Where a Fold, a Finish or any other output fails, the run ends for every rank: a chunk
   whose part may be missing is never summed over.
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
