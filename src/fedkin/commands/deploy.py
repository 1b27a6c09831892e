"""fedkin deploy init, certificates, key."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedkin.commands import flags

app = typer.Typer(help="A real federation on Flower: the app, certificates and keys, one folder per site.")
Address = Annotated[str, typer.Option("--address", help="name or IP address under which sites reach the server")]


@app.command()
def init(
    folder: Annotated[Path, typer.Argument(help="a new folder", metavar="DIR", show_default=False)],
    sites: Annotated[str, typer.Option("--sites", help="names of the sites, separated by commas", metavar="A,B,C")],
    address: Address = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", help="the server's port", min=2, max=65000)] = 9092,
    algorithm: Annotated[str, typer.Option("--algorithm", help="the method, see: fedkin algorithms")] = "fedavg",
    model: Annotated[str, typer.Option("--model", help="network, for example mlr or mlp:100")] = "mlr",
    rounds: Annotated[int, typer.Option("--rounds", help="rounds to train", min=1)] = 10,
    example: Annotated[bool, typer.Option("--example", help="give the sites handwritten digits, to try it")] = False,
    json: flags.Json = None,
) -> None:
    """Write a complete Flower app: settings, test certificates, a key and a folder per site, start commands.

    \b
    Examples:
      fedkin deploy init clinics --sites north,south --example
      fedkin deploy init clinics --sites a,b,c --address fed.example.org --algorithm fedpnp
    """
    from fedkin.commands import show
    from fedkin.files import write_json

    _needs_flower()
    from fedkin.deployment.new_app import Deployment

    names = [name.strip() for name in sites.split(",") if name.strip()]
    found = Deployment(folder, names, address, port, model, algorithm, rounds, example).write()
    for site in found:
        data = "data.npz" if example else "its data file (data.csv)"
        show.say(f"site {site.name}: {site} with {data}")
    show.say(f"next: {folder / 'README.md'}")
    if json is not None:
        write_json(json, {"folder": str(folder), "sites": [str(site) for site in found], "port": port})
    show.wrote(json)


@app.command()
def certificates(
    folder: Annotated[Path, typer.Argument(help="where to write them", metavar="DIR", show_default=False)],
    address: Address = "127.0.0.1",
) -> None:
    """Make certificates for test use: a CA, and the server's for this address (also 127.0.0.1 and localhost).

    \b
    Example:
      fedkin deploy certificates clinics/server/certificates --address 192.0.2.7
    """
    from fedkin.commands import show

    _needs_flower()
    from fedkin.deployment.credentials import make_certificates

    show.wrote(make_certificates(folder, list(dict.fromkeys([address, "127.0.0.1", "localhost"]))))


@app.command()
def key(
    path: Annotated[Path, typer.Argument(help="the private key; .pub is added for the public one", metavar="FILE")],
) -> None:
    """Make the key pair of a site (ECDSA-384, OpenSSH format).

    \b
    Example:
      fedkin deploy key clinics/sites/east/key
    """
    from fedkin.commands import show
    from fedkin.errors import FedkinError

    _needs_flower()
    from fedkin.deployment.credentials import make_key

    if path.exists():
        raise FedkinError(f"{path} exists; a site keeps its key, or choose another file")
    show.wrote(make_key(path))


def _needs_flower() -> None:
    from importlib.util import find_spec

    from fedkin.errors import FedkinError

    if find_spec("flwr") is None or find_spec("cryptography") is None:
        raise FedkinError("fedkin deploy needs Flower; install it with: pip install 'fedkin[flower]'")
