"""fedkin deploy init, check, add-site, remove-site, port, certificates, key."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedkin.commands import flags

if TYPE_CHECKING:
    from rich.table import Table

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
    target: Annotated[str, typer.Option("--target", help="the column to predict in the sites' tables")] = "y",
    example: Annotated[bool, typer.Option("--example", help="give the sites handwritten digits, to try it")] = False,
    json: flags.Json = None,
) -> None:
    """Write a complete Flower app: settings, test certificates, a key and a folder per site, start commands.

    \b
    Examples:
      fedkin deploy init clinics --sites north,south --example
      fedkin deploy init clinics --sites a,b,c --address fed.example.org
    """
    from fedkin.commands import show
    from fedkin.files import write_json

    _needs_flower()
    from fedkin.deployment.new_app import Deployment
    from fedkin.deployment.ports import port_fault

    names = [name.strip() for name in sites.split(",") if name.strip()]
    found = Deployment(folder, names, address, port, model, algorithm, rounds, target, example).write()
    for site in found:
        data = "data.npz" if example else f"its data file (data.csv, to predict {target!r})"
        show.say(f"site {site.name}: {site} with {data}")
    if address in ("127.0.0.1", "localhost"):
        ports = [port, *(port + 1 + number for number in range(len(names)))]
        show.say(*(f"note: {fault}" for number in ports if (fault := port_fault("127.0.0.1", number))))
    show.say(f"next: {folder / 'README.md'}")
    if json is not None:
        write_json(json, {"folder": str(folder), "sites": [str(site) for site in found], "port": port})
    show.wrote(json)


@app.command()
def check(
    folder: Annotated[Path, typer.Argument(help="the federation's folder", metavar="DIR")] = Path(),
    connection: Annotated[
        str, typer.Option("--connection", help="flwr's name of the server, where it is not the default: inside")
    ] = "",
    wait: Annotated[float, typer.Option("--wait", help="seconds to wait for the sites", min=1)] = 60,
    json: flags.Json = None,
) -> None:
    """Look at every site before anything is trained: columns, target, classes, versions, clock, certificate, disk.

    All faults are told at once, and the exit code is 1 if there are any. Nothing is trained, nothing is kept.

    \b
    Examples:
      fedkin deploy check
      fedkin deploy check clinics --wait 300 --json check.json
    """
    from dataclasses import asdict

    from fedkin.commands import show
    from fedkin.files import write_json

    _needs_flower()
    from fedkin.deployment.asking import ask_server

    found = ask_server(folder, connection, wait)
    if json is not None:
        write_json(json, asdict(found))
        show.wrote(json)
    if found.rows:
        show.console().print(_checked(found.rows))
    show.say(*(f"note: {note}" for note in found.notes))
    show.say(*(f"fault: {fault}" for fault in found.faults))
    if found.faults:
        raise typer.Exit(1)
    show.say("no faults: the sites fit each other")


@app.command("add-site")
def add_site(
    name: Annotated[str, typer.Argument(help="the new site", metavar="NAME")],
    folder: Annotated[Path, typer.Argument(help="the federation's folder", metavar="DIR")] = Path(),
    target: Annotated[
        str | None, typer.Option("--target", help="the column to predict (default: that of the others)")
    ] = None,
    connection: Annotated[str, typer.Option("--connection", help="flwr's name of the server: inside")] = "",
) -> None:
    """Let another site in: its folder, with a key of its own, its registration, and the lines to run.

    The next run begins from the rows of the last, with the graph grown and the other sites' private state as it was.

    \b
    Example:
      fedkin deploy add-site east clinics
    """
    from fedkin.commands import show

    _needs_flower()
    from fedkin.deployment.asking import register
    from fedkin.deployment.membership import Membership

    members = Membership(folder)
    show.wrote(members.add(name, target))
    fault = register(folder, name, connection)
    show.say("its key is registered" if fault is None else f"register its key: {fault}")
    show.say(
        f"on its machine: put data.csv beside site.toml, then run sites/{name}/start.sh", "then: fedkin deploy check"
    )
    show.say(f"then: {members.next_run()}")


@app.command("remove-site")
def remove_site(
    name: Annotated[str, typer.Argument(help="the site that leaves", metavar="NAME")],
    folder: Annotated[Path, typer.Argument(help="the federation's folder", metavar="DIR")] = Path(),
) -> None:
    """Let a site go: it is counted no longer. Its folder, key and models stay where they are, for they are the site's.

    \b
    Example:
      fedkin deploy remove-site east clinics
    """
    from fedkin.commands import show

    _needs_flower()
    from fedkin.deployment.membership import Membership

    members = Membership(folder)
    members.remove(name)
    show.say(f"site {name!r} is counted no longer: {len(members.sites)} sites are left ({', '.join(members.sites)})")
    show.say("take back its key: flwr supernode list, then flwr supernode unregister NODE")
    show.say(f"then: {members.next_run()}")


def _checked(rows: list[dict[str, Any]]) -> Table:
    from fedkin.commands import show
    from fedkin.reports.wording import human_bytes

    made = show.table(
        "client", "site", "samples", "inputs", "target", "classes", "fedkin", "clock", "certificate", "disk"
    )
    for row in rows:
        days, classes = row["certificate_days"], row["classes"]
        made.add_row(
            row["client"],
            row["site"],
            f"{row['samples']:,}",
            "–" if row["inputs"] is None else "×".join(map(str, row["inputs"])),
            row["target"] or "–",
            "–" if classes is None else str(len(classes)) if len(classes) > 3 else ", ".join(classes),
            row["versions"].get("fedkin", "–"),
            f"{row['clock']:+.0f} s" if row["clock"] else "right",
            "–" if days is None else f"{days} days",
            f"{human_bytes(row['disk'])} free",
        )
    return made


@app.command()
def port(
    host: Annotated[str, typer.Argument(help="the address to listen at", metavar="HOST")],
    number: Annotated[int, typer.Argument(help="the port", metavar="PORT", min=1, max=65535)],
) -> None:
    """Say whether a port is free; the start scripts ask before they start Flower.

    \b
    Example:
      fedkin deploy port 127.0.0.1 9092
    """
    from fedkin.deployment.ports import refuse_taken

    refuse_taken(host, number)


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
