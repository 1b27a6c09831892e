"""Downloads: resumed, with a progress bar, checked by hash, from upstream or a mirror."""

from __future__ import annotations

import http.client
import os
import shutil
import ssl
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from fedkin.data.progress import bar
from fedkin.data.source import File
from fedkin.errors import FedkinError

NETWORK = (urllib.error.URLError, http.client.HTTPException, ssl.SSLError, TimeoutError, ConnectionError)


def fetch(file: File, dataset: str, folder: Path) -> Path:
    """Have `file` in `folder`, from `$FEDKIN_MIRROR/<set>/<file>` if set, else (or if that fails) from upstream."""
    import pooch

    pooch.get_logger().setLevel("WARNING")  # progress is shown here, not by pooch's log
    folder.mkdir(parents=True, exist_ok=True)
    mirror = os.environ.get("FEDKIN_MIRROR")
    if mirror and not mirror.startswith(("http://", "https://", "file://")):
        raise FedkinError(f"FEDKIN_MIRROR is {mirror!r}; it must begin with http://, https:// or file://")
    urls = [f"{mirror.rstrip('/')}/{dataset}/{file.name}"] if mirror else []
    urls += [file.url] if file.url else []
    failures = []
    for url in urls:
        try:
            path = pooch.retrieve(url, file.hash, fname=file.name, path=folder, downloader=Resuming(file, folder))
            return Path(path)
        except NETWORK as problem:
            failures.append(f"{url} ({getattr(problem, 'reason', problem)})")
        except ValueError as problem:  # pooch: the hash differs; it has removed the file
            raise FedkinError(f"{url}: checksum mismatch; try again, or use another mirror") from problem
    raise FedkinError(
        f"cannot download {file.name} from {' or '.join(failures)}; check the network, set FEDKIN_MIRROR, "
        f"or put the file in a folder DIR and run: fedkin data prepare {dataset} --from DIR (or set FEDKIN_DATA)"
    )


class Resuming:
    """A pooch downloader that keeps what has arrived in `<file>.part` and asks for the rest the next time.

    Only a file with a known hash is resumed: without one, two versions could be joined unnoticed.
    """

    def __init__(self, file: File, folder: Path) -> None:
        self.name, self.part = file.name, folder / f"{file.name}.part"
        self.resumable = file.hash is not None

    def __call__(self, url: str, output_file: str, pooch: Any, check_only: bool = False) -> None:
        part = self.part
        have = part.stat().st_size if self.resumable and part.exists() else 0
        request = urllib.request.Request(url, headers={"User-Agent": "fedkin", "Accept-Encoding": "identity"})
        if have:
            request.add_header("Range", f"bytes={have}-")
        try:
            response = urllib.request.urlopen(request, timeout=60)
        except urllib.error.HTTPError as problem:
            if problem.code != http.client.REQUESTED_RANGE_NOT_SATISFIABLE:
                raise
            part.unlink()  # longer than the file: start again
            return self(url, output_file, pooch)
        with response:
            resumed = response.status == http.client.PARTIAL_CONTENT
            expected = int(response.headers.get("Content-Length") or 0)
            with open(part, "ab" if resumed else "wb") as out, bar(self.name, expected or None) as advance:
                arrived = 0
                while block := response.read(1 << 16):
                    out.write(block)
                    arrived += len(block)
                    advance(len(block))
        if arrived < expected:
            raise ConnectionError(f"the connection broke after {arrived} of {expected} bytes; run again to resume")
        shutil.move(part, output_file)
