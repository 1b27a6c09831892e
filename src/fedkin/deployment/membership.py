"""Sites that come and go: `fedkin deploy add-site` and `remove-site`, in the folder that `fedkin deploy init` made."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from pathlib import Path

from fedkin.deployment.new_app import NAME, Deployment
from fedkin.errors import FedkinError, unknown
from fedkin.files import whole_folder, write_atomic

COUNT = re.compile(r"^(\s*sites\s*=\s*)(\d+)", flags=re.M)


@dataclass(frozen=True)
class Membership:
    """The sites of a federation, as its folder has them."""

    folder: Path

    def __post_init__(self) -> None:
        if not (self.folder / "server" / "federation.toml").exists():
            raise FedkinError(f"{self.folder} holds no federation; name the folder that fedkin deploy init made")

    @property
    def sites(self) -> list[str]:
        return sorted(path.parent.name for path in (self.folder / "sites").glob("[!.]*/site.toml"))

    def add(self, name: str, target: str | None = None) -> Path:
        """Write the folder of a new site, with a key of its own, and count it in federation.toml."""
        if not NAME.fullmatch(name):
            raise FedkinError(f"site {name!r}: use letters, digits, - and _ only; it becomes a folder")
        if (self.folder / "sites" / name).exists() or name.lower() in map(str.lower, self.sites):
            raise FedkinError(f"site {name!r} is there already; choose another name")
        address, _, port = self._address().rpartition(":")
        plan = Deployment(self.folder, [name], address, int(port), target=target or self._target())
        own = self.folder.absolute() / "sites" / name
        with whole_folder(own) as fresh:
            plan.write_site(name, int(port) + 1 + len(self.sites), fresh, self.folder)
            self._count(len(self.sites) + 1)
        return own

    def remove(self, name: str) -> str | None:
        """Count a site no longer; its folder stays, for it is the site's. The public key's file, if there is one."""
        if name not in self.sites:
            raise unknown("site", name, self.sites)
        if len(self.sites) == 1:
            raise FedkinError(f"site {name!r} is the last one; a federation needs at least one")
        own = self.folder / "sites" / name
        (own / "site.toml").rename(own / "site.toml.left")
        self._count(len(self.sites))
        return f"sites/{name}/key.pub" if (own / "key.pub").exists() else None

    def next_run(self) -> str:
        """The command that trains with the sites there are now: from the newest result, if there is one."""
        done = sorted(
            (path.parent for path in (self.folder / "server").glob("*/result.safetensors")),
            key=lambda path: (path / "result.safetensors").stat().st_mtime,
        )
        if not done:
            return "flwr run . --stream"
        new = next(name for k in range(2, 10**6) if not (self.folder / "server" / (name := f"result-{k}")).exists())
        return f'flwr run . --run-config \'out="{new}" start="{done[-1].name}"\' --stream'

    def _count(self, sites: int) -> None:
        path = self.folder / "server" / "federation.toml"
        text, changed = COUNT.subn(rf"\g<1>{sites}", path.read_text(), count=1)
        if not changed:
            raise FedkinError(f"{path} does not say how many sites there are; write sites = {sites} under [federation]")
        write_atomic(path, text.encode())

    def _address(self) -> str:
        path = self.folder / "server" / "flwr.toml"
        try:
            return str(tomllib.loads(path.read_text())["superlink"]["federation"]["address"])
        except (OSError, KeyError, tomllib.TOMLDecodeError) as problem:
            raise FedkinError(f"{path} does not say where the server is: {problem}") from problem

    def _target(self) -> str:
        """The target column of the sites there are, where they agree."""
        found = set()
        for site in self.sites:
            clients = tomllib.loads((self.folder / "sites" / site / "site.toml").read_text()).get("clients", [])
            found |= {str(client.get("target", "y")) for client in clients}
        return found.pop() if len(found) == 1 else "y"
