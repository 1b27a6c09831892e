"""Reading plays: who says which lines, from three ways of printing them."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter, defaultdict

import numpy as np

Roles = dict[str, list[str]]
HEADING = re.compile(r"^(?:\d )?[A-Z][A-Za-z'.]*(?: [A-Za-z'.]+){0,4}\.$|^[A-Z][A-Z' ]+$")
DIRECTION = re.compile(r"\[[^\]]*\]|^(?:ACT|SCENE|Scene|Act)\b.*$", re.MULTILINE)


def parse_tiny(text: str) -> Roles:
    """Blocks separated by empty lines, each headed `Name:`."""
    roles: Roles = defaultdict(list)
    for block in text.split("\n\n"):
        head, *lines = block.strip("\n").split("\n")
        if head.endswith(":"):
            roles[head[:-1]] += lines
    return dict(roles)


def parse_complete(text: str) -> Roles:
    """Works headed `@@@ play name`; a role's name stands alone on a line before its words.

    Works mark it differently (`HAMLET.`, `Ham.`, `OBERON`). A line is taken for a name if it looks like one and stands
    between an empty line and words at least twice in the play; then it is one wherever it stands alone.
    """
    roles: Roles = defaultdict(list)
    for work in re.split(r"^@@@ ", text, flags=re.MULTILINE)[1:]:
        kind, _, body = work.partition(" ")
        play, _, body = body.partition("\n")
        if kind != "play":
            continue
        lines = [line.strip() for line in DIRECTION.sub("", body).split("\n")]
        around = zip(["", *lines], lines, [*lines[1:], ""])
        counts = Counter(line for before, line, after in around if not before and after and HEADING.match(line))
        names = {line for line, count in counts.items() if count >= 2}
        speaker = None
        for line in lines:
            if line in names:
                speaker = f"{play}: {line.rstrip('.').upper()}"
            elif line and speaker:
                roles[speaker].append(line)
    return dict(roles)


def parse_leaf(text: str) -> Roles:
    """Project Gutenberg's file 100 of 1994, as LEAF reads it.

    A play begins at "by William Shakespeare", its title some lines above. Two blanks and `NAME. words` begin a speech,
    four blanks go on with it; The Comedy of Errors is not indented, and ends a speech at a line with `<`.
    """
    roles: Roles = defaultdict(list)
    lines = text.splitlines()
    play, speaker = "", None
    for i, line in enumerate(lines):
        if "by william shakespeare" in line.lower():
            play = next((title.strip() for title in reversed(lines[max(0, i - 7) : i - 1]) if title.strip()), "")
            speaker = None
            continue
        flat = play == "THE COMEDY OF ERRORS"
        start = re.match(r"([A-Za-z][A-Za-z ]*)\. (.*)" if flat else r"  ([A-Za-z][A-Za-z ]*)\. (.*)", line)
        if play and start:
            speaker = None if flat and start[1].startswith("ACT ") else f"{play}: {start[1].upper()}"
            words = start[2]
        elif speaker and not (flat and line.startswith("<")) and (flat or line.startswith("    ")):
            words = line.strip()
        else:
            speaker = None if flat and line.startswith("<") else speaker
            continue
        if speaker and words:
            roles[speaker].append(words)
    return dict(roles)


def as_arrays(roles: Roles) -> dict[str, np.ndarray]:
    """Roles as plain arrays: their names, all lines as one array of ASCII codes, and where each role begins."""
    texts = {name: _plain("\n".join(lines)) for name, lines in sorted(roles.items())}
    codes = np.frombuffer("".join(texts.values()).encode("ascii"), dtype=np.uint8)
    offsets = np.cumsum([0, *(len(text) for text in texts.values())])
    return {"names": np.array(list(texts)), "text": codes, "offsets": offsets.astype(np.int64)}


def _plain(text: str) -> str:
    """Accents removed, typographic marks dropped: only the 100 printable ASCII characters are left."""
    return unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode("ascii")
