"""fedkin graph build, show, convert."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedkin.commands import flags

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from fedkin.graphs import ClientGraph

Drawing = Callable[["ClientGraph", "Axes"], None]
app = typer.Typer(help="Graphs between clients: build one for a data set, look at one.")
Plot = Annotated[
    Path | None, typer.Option("--plot", help="draw it (.png, .svg, .pdf)", metavar="FILE.png", show_default=False)
]


@app.command()
def build(
    spec: Annotated[
        str, typer.Argument(help="knn:5, statistics, gaussian, labels, sizes, random, complete, …", show_default=False)
    ],
    data: flags.Data = None,
    clients: flags.NumClients = None,
    partition: flags.Partition = None,
    csv: flags.Csv = None,
    client: flags.Client = None,
    target: flags.Target = None,
    model: flags.Model = None,
    seed: flags.Seed = None,
    out: Annotated[
        Path, typer.Option("--out", help="where to write it (.npz, or an edge list .csv, .parquet)", metavar="FILE")
    ] = Path("graph.npz"),
    plot: Plot = None,
    json: flags.Json = None,
) -> None:
    """Build the graph a run would build, from what clients disclose (statistics, label counts, sizes).

    \b
    Examples:
      fedkin graph build knn:5 --data digits --clients 20 --out graph.npz
      fedkin graph build statistics --csv visits.csv --client site --target y
    """
    from fedkin import config
    from fedkin.commands import show
    from fedkin.errors import FedkinError
    from fedkin.graphs.files import ENDINGS
    from fedkin.run import make_run

    if out.suffix not in ENDINGS:
        raise FedkinError(f"--out {out} must end in {', '.join(ENDINGS)}")
    layer = flags.layer(
        data=data, clients=clients, partition=partition, csv=csv, client=client, target=target, model=model, seed=seed
    )
    settings = config.settle([layer], default=["local"])
    with show.working(f"loading {settings.data.name} …"):
        federation = settings.federation(settings.seeds[0])
    with show.working("building the graph …"):
        (algorithm,) = settings.algorithms.values()
        run = make_run(federation, settings.model, algorithm, settings.options[0], spec)
        run.close()
    graph = run.setting.graph
    assert graph is not None
    out.parent.mkdir(parents=True, exist_ok=True)
    graph.save(out)
    _present(graph, plot, json, _response, spec=spec)
    show.wrote(out)


@app.command("show")
def show_graph(
    file: Annotated[
        Path,
        typer.Argument(
            help="a graph (.npz, .csv, .parquet) or the folder of a run", metavar="FILE", show_default=False
        ),
    ],
    denoiser: Annotated[
        str, typer.Option("--filter", help="the denoiser whose response --plot draws: soft, hard, heat, tikhonov")
    ] = "soft",
    strength: Annotated[
        list[float] | None,
        typer.Option("--strength", help="its strength β, or τ for hard (repeatable)", show_default=False),
    ] = None,
    plot: Plot = None,
    json: flags.Json = None,
) -> None:
    """Look at a graph: components, spectrum, degrees, isolated clients, what FedPnP's filter does to it.

    \b
    Examples:
      fedkin graph show graph.npz
      fedkin graph show runs/digits-fedu-seed0 --plot graph.png
      fedkin graph show graph.npz --filter hard --strength 3 --plot filter.png
    """
    from fedkin.errors import FedkinError
    from fedkin.graphs import ClientGraph

    path = file / "graph.npz" if file.is_dir() else file
    if file.is_dir() and not path.exists():
        raise FedkinError(f"{file} holds no graph (graph.npz); its method used none")
    _present(ClientGraph.load(path), plot, json, partial(_response, denoiser=denoiser, strengths=strength))


@app.command()
def convert(
    file: Annotated[Path, typer.Argument(help="a graph (.npz, .csv, .parquet)", metavar="FILE", show_default=False)],
    out: Annotated[Path, typer.Argument(help="the same graph in another format", metavar="OUT", show_default=False)],
    edges: Annotated[
        bool, typer.Option("--edges", help="an .npz with source, target, weight instead of a sparse matrix")
    ] = False,
) -> None:
    """Write a graph in another format: .npz, or an edge list in .csv or .parquet.

    \b
    Examples:
      fedkin graph convert roads.csv roads.npz
      fedkin graph convert graph.npz edges.parquet
    """
    from fedkin.commands import show
    from fedkin.errors import FedkinError
    from fedkin.graphs import ClientGraph
    from fedkin.graphs.files import ENDINGS

    for path in (file, out):
        if path.suffix not in ENDINGS:
            raise FedkinError(f"{path} must end in {', '.join(ENDINGS)}")
    graph = ClientGraph.load(file)
    out.parent.mkdir(parents=True, exist_ok=True)
    graph.to_edges(out) if edges else graph.save(out)
    show.say(repr(graph))
    show.wrote(out)


def graph_numbers(graph: ClientGraph) -> dict[str, Any]:
    """A graph in numbers."""
    import numpy as np

    counts, edges = np.histogram(graph.degrees, bins=min(10, max(1, len(np.unique(graph.degrees)))))
    parts = np.bincount(graph.components())
    return {
        "clients": len(graph),
        "edges": graph.n_edges,
        "components": len(parts),
        "component_sizes": sorted(parts.tolist(), reverse=True),
        "isolated": list(graph.isolated),
        "lambda_1": graph.lambda_1(),
        "lambda_max": graph.lambda_max(),
        "degrees": dict(zip(graph.names, graph.degrees.tolist())),
        "degree_histogram": {"edges": edges.tolist(), "counts": counts.tolist()},
    }


def _present(graph: ClientGraph, plot: Path | None, json: Path | None, response: Drawing, **more: Any) -> None:
    from fedkin.commands import show
    from fedkin.files import write_json

    numbers = graph_numbers(graph)
    show.say(repr(graph))
    screen = show.console()
    screen.print(
        show.facts(
            {
                "λ₁ (algebraic connectivity)": f"{numbers['lambda_1']:.6g}",
                "λ_max": f"{numbers['lambda_max']:.6g}",
                "component sizes": show.some_of([str(size) for size in numbers["component_sizes"]]),
                "isolated clients": show.some_of(numbers["isolated"]),
            }
        )
    )
    histogram = show.table("degree", "clients", "")
    histogram.columns[2].justify = "left"
    edges, counts = numbers["degree_histogram"].values()
    for low, high, count in zip(edges, edges[1:], counts):
        bar = "█" * round(40 * count / max(counts))
        histogram.add_row(f"{low:.3g} – {high:.3g}", str(count), bar)
    screen.print(histogram)
    if plot is not None:
        draw(graph, plot, (*PANELS, response))
    if json is not None:
        write_json(json, {**more, **numbers})
    show.wrote(plot)
    show.wrote(json)


# --- drawing --------------------------------------------------------------------------------------------------------


def _network(graph: ClientGraph, ax: Axes) -> None:
    graph.plot(ax)
    ax.set_title(f"{len(graph):,} clients, {graph.n_edges:,} edges")


def _spectrum(graph: ClientGraph, ax: Axes) -> None:
    from fedkin.graphs.spectrum import DECOMPOSITION_LIMIT

    if len(graph) <= DECOMPOSITION_LIMIT:
        values = graph.eigen()[0]
        ax.plot(range(len(values)), values, ".-")
    else:  # too many for all of them: the ends
        ax.plot([0, 1, len(graph) - 1], [0, graph.lambda_1(), graph.lambda_max()], "o")
    ax.set(title="spectrum of the Laplacian", xlabel="mode", ylabel="λ")


def _degrees(graph: ClientGraph, ax: Axes) -> None:
    ax.hist(graph.degrees, bins=20)
    ax.set(title="degrees", xlabel="degree", ylabel="clients")


def _response(graph: ClientGraph, ax: Axes, denoiser: str = "soft", strengths: Sequence[float] | None = None) -> None:
    from fedkin.couplings.drawing import draw_response

    draw_response(graph, denoiser, strengths, ax=ax)
    ax.set_title(f"what the filter {denoiser!r} keeps")


PANELS: tuple[Drawing, ...] = (_network, _spectrum, _degrees)
"""What `--plot` draws, from left to right, before the response of a filter."""


def draw(graph: ClientGraph, path: Path, panels: Sequence[Drawing]) -> None:
    """One figure with all panels, written to a file."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5 * len(panels), 4.5), layout="constrained")
    for panel, ax in zip(panels, figure.subplots(1, len(panels))):
        panel(graph, ax)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
