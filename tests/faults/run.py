"""make test-faults: everything in campaign.py, many times; prints what was tried and what survived as one table."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

import campaign

METHODS = ("fedu", "fedavg", "scaffold", "ditto", "fedcedar", "fedrelax")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, help="kills per method (default: every crash point)")
    parser.add_argument("--damages", type=int, default=1000)
    parser.add_argument("--inputs", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    lines, faults = ["| fault | tried | survived | seconds |", "|---|--:|--:|--:|"], []

    def row(title: str, started: float, outcome: campaign.Outcome) -> None:
        tried, failed = outcome
        lines.append(
            f"| {title} | {tried:,} | {tried - len({f.split(':')[0] for f in failed}):,} | {time.time() - started:.0f} |"
        )
        faults.extend(failed)
        print(lines[-1], file=sys.stderr, flush=True)

    with tempfile.TemporaryDirectory() as folder:
        for method in METHODS:
            started, place = time.time(), Path(folder) / method
            place.mkdir()
            row(
                f"killed while writing ({method}), resumed bitwise", started, campaign.kills(place, method, asked.kills)
            )
        started = time.time()
        row("a file of a run directory damaged", started, campaign.damages(Path(folder), asked.damages, asked.seed))
        started = time.time()
        row("odd inputs", started, campaign.inputs(Path(folder), asked.inputs, asked.seed))
    print("\n".join(lines))
    print("\n".join(faults), file=sys.stderr)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
