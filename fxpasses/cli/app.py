"""The commands and their options. What they do is in `commands`, which loads torch."""

from pathlib import Path
from typing import Annotated

import typer

import fxpasses
from fxpasses.cli.choices import (
    Capturing,
    Checks,
    Color,
    Dumping,
    Failure,
    Picture,
    Pipeline,
    Profiling,
    Showing,
    Sizes,
    Subject,
    Verify,
)
from fxpasses.cli.outcome import told

_HELP = "Graph passes on torch models: explicit, verified, explained."
_CODES = "Exit codes: 0 verified, 1 failed or not verified, 2 wrong use, 130 interrupted."

app = typer.Typer(
    name="fxpasses",
    help=_HELP,
    epilog=_CODES,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)


def main() -> None:
    """The console script."""
    app()


Model = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        show_default=False,
        help="torchvision:NAME, timm:NAME, package.module:FACTORY or file.py:FACTORY, built with "
        "random weights; with options as in 'timm:resnet18{num_classes=10}'.",
    ),
]
Passes = Annotated[
    str,
    typer.Option(
        "--passes",
        "-p",
        metavar="PIPELINE",
        help="Names of passes and pipelines, as `fxpasses passes` lists them: 'inference,-dce', "
        "'constant_fold{largest_bytes=1024},dce', '(constant_fold,dce)*4'.",
    ),
]
Inputs = Annotated[
    list[str] | None,
    typer.Option(
        "--input",
        "-i",
        metavar="SPEC",
        show_default=False,
        help="One argument of the example call, several times: SHAPE, SHAPE:DTYPE or "
        "SHAPE:DTYPE[LOW,HIGH], as in 1x3x224x224, scalar:float64, 2x16:int64[0,999] (both ends "
        "included). NAME=SPEC passes it by name, [SPEC,...] is a list, {KEY=SPEC,...} a mapping, "
        "==VALUE or NAME==VALUE a plain value. Without any it is inferred where that is "
        "unambiguous.",
    ),
]
Train = Annotated[
    bool, typer.Option("--train", help="Put the model in training mode; else in eval mode.")
]
Target = Annotated[
    str | None,
    typer.Option(metavar="DEVICE", help="auto, cpu, cuda or cuda:N: a copy is optimised there."),
]
Registries = Annotated[
    list[Path] | None,
    typer.Option(
        "--registry",
        metavar="FILE",
        show_default=False,
        help="A registry file with more passes and pipelines, several times.",
    ),
]
Skip = Annotated[
    list[str] | None,
    typer.Option(metavar="ID", show_default=False, help="Leave out this rewrite, several times."),
]
Only = Annotated[
    list[str] | None,
    typer.Option(metavar="ID", show_default=False, help="Make only this rewrite, several times."),
]
Seed = Annotated[int, typer.Option(help="Of the random weights and inputs.")]
Report = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        show_default=False,
        help="Write all of the report here, in the form of the suffix: .txt, .md, .html, .json.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Details = Annotated[bool, typer.Option("--details", help="Print everything, not one screen.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]


Output = Annotated[
    Path | None,
    typer.Option(
        "--output",
        "-o",
        metavar="FILE",
        show_default=False,
        help="Write the picture here, in the form of the suffix: .svg, .png, .dot, .txt. Without, "
        "the graph is printed as text.",
    ),
]
Colors = Annotated[
    Color,
    typer.Option(
        "--color",
        "--colour",
        help="What colours show. change: what became of each node, or its kind; error: what the "
        "verifier found; time: seconds in each node; memory: bytes of results; saved: bytes that "
        "autograd keeps.",
    ),
]
Focus = Annotated[
    str | None,
    typer.Option(
        metavar="NODE", show_default=False, help="Show only what is near to this node or module."
    ),
]
Hops = Annotated[int, typer.Option(metavar="N", min=0, help="How near, with --focus.")]
Boxes = Annotated[
    int,
    typer.Option(
        "--most-boxes", metavar="N", min=1, help="Fold the graph into at most so many boxes."
    ),
]
Drawer = Annotated[
    str | None,
    typer.Option(
        "--renderer",
        metavar="NAME",
        show_default=False,
        help="dot, graphviz-pure or text; without, the first that there is.",
    ),
]


def _show_version(asked: bool) -> None:
    if asked:
        typer.echo(f"fxpasses {fxpasses.__version__}")
        raise typer.Exit


@app.callback(help=_HELP, epilog=_CODES)
def top(
    *,
    version: Annotated[
        bool,
        typer.Option("--version", is_eager=True, callback=_show_version, help="Show the version."),
    ] = False,
) -> None:
    """What stands before a command."""


@app.command(
    short_help="Optimise, verify and report.",
    epilog="Such as: fxpasses run torchvision:resnet50 -i 1x3x224x224 -o fast.pt",
)
def run(  # noqa: PLR0913  each is an option of the command
    *,
    model: Model,
    passes: Passes = "inference",
    input: Inputs = None,  # noqa: A002  the name of the option
    target: Target = None,
    train: Train = False,
    verify: Annotated[
        Verify,
        typer.Option(
            help="sites: every rewrite at its site, and the whole once; each: the whole after "
            "each pass; full: more probes, and gradients; off: nothing."
        ),
    ] = Verify.SITES,
    on_failure: Annotated[
        Failure,
        typer.Option(help="What becomes of a pass that fails, or a rewrite that is found wrong."),
    ] = Failure.RAISE,
    skip: Skip = None,
    only: Only = None,
    stop_after: Annotated[
        int | None, typer.Option(metavar="N", min=0, help="Stop after N rewrites.")
    ] = None,
    registry: Registries = None,
    seed: Seed = 0,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            show_default=False,
            help="Save the result: as a module (.pt, .pth), or the code of its graphs, to be "
            "read (.py).",
        ),
    ] = None,
    dump: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            show_default=False,
            help="Write the graphs here as every pass leaves them: 00_captured.py, "
            "01_constant_fold.py and so on.",
        ),
    ] = None,
    dump_changed: Annotated[
        bool, typer.Option("--dump-changed", help="Of these, only those that a pass has changed.")
    ] = False,
    report: Report = None,
    json: Json = False,
    details: Details = False,
    debug: Debug = False,
) -> None:
    """Optimise MODEL, verify the result, and report what was done and what was refused."""
    with told(debug=debug):
        from fxpasses.cli import commands  # noqa: PLC0415  it loads torch

        commands.run(
            Subject(model, tuple(input or ()), train=train, seed=seed),
            _pipeline(passes, registry, target, skip, only),
            Checks(verify, on_failure, stop_after),
            Showing(report, json=json, details=details),
            output,
            Dumping(dump, changed_only=dump_changed),
        )


@app.command(short_help="What run would rewrite and refuse.")
def plan(  # noqa: PLR0913  each is an option of the command
    *,
    model: Model,
    passes: Passes = "inference",
    input: Inputs = None,  # noqa: A002  the name of the option
    target: Target = None,
    train: Train = False,
    skip: Skip = None,
    only: Only = None,
    registry: Registries = None,
    seed: Seed = 0,
    report: Report = None,
    json: Json = False,
    details: Details = False,
    debug: Debug = False,
) -> None:
    """Show what `run` would rewrite in MODEL and what it would refuse. Nothing is verified."""
    with told(debug=debug):
        from fxpasses.cli import commands  # noqa: PLC0415  it loads torch

        commands.plan(
            Subject(model, tuple(input or ()), train=train, seed=seed),
            _pipeline(passes, registry, target, skip, only),
            Showing(report, json=json, details=details),
        )


@app.command(
    short_help="Which conditions hold where, and which do not.",
    epilog="Such as: fxpasses explain torchvision:resnet18 --node layer1_0_bn1",
)
def explain(  # noqa: PLR0913  each is an option of the command
    *,
    model: Model,
    passes: Passes = "inference",
    node: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", show_default=False, help="This node alone, and what takes its place."
        ),
    ] = None,
    pass_name: Annotated[
        str | None,
        typer.Option("--pass", metavar="NAME", show_default=False, help="This pass alone."),
    ] = None,
    input: Inputs = None,  # noqa: A002  the name of the option
    target: Target = None,
    train: Train = False,
    skip: Skip = None,
    only: Only = None,
    registry: Registries = None,
    seed: Seed = 0,
    report: Report = None,
    json: Json = False,
    details: Details = False,
    debug: Debug = False,
) -> None:
    """Show what the passes saw of MODEL: which conditions each place meets, and near misses."""
    with told(debug=debug):
        from fxpasses.cli import commands  # noqa: PLC0415  it loads torch

        commands.explain(
            Subject(model, tuple(input or ()), train=train, seed=seed),
            _pipeline(passes, registry, target, skip, only),
            Showing(report, json=json, details=details),
            node,
            pass_name,
        )


@app.command(short_help="Passes, pipelines and plugins by name.")
def passes(
    *,
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="[NAME]...", show_default=False, help="Only these."),
    ] = None,
    registry: Registries = None,
    json: Json = False,
    details: Details = False,
    debug: Debug = False,
) -> None:
    """List passes and pipelines, with options and where each comes from; and what is broken."""
    with told(debug=debug):
        from fxpasses.cli import commands  # noqa: PLC0415  it loads torch

        commands.passes(
            tuple(names or ()), tuple(registry or ()), Showing(json=json, details=details)
        )


@app.command(short_help="What becomes graphs, and what runs its own code.")
def capture(  # noqa: PLR0913  each is an option of the command
    *,
    model: Model,
    input: Inputs = None,  # noqa: A002  the name of the option
    train: Train = False,
    sizes: Annotated[
        Sizes,
        typer.Option(
            help="Branches on sizes. guards: checked at run time; kinds: opaque; shapes: decided, "
            "for the shapes of the example alone."
        ),
    ] = Sizes.GUARDS,
    leaf: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FUNCTION",
            show_default=False,
            help="A function, such as einops.*, that stays one node; several times.",
        ),
    ] = None,
    code: Annotated[
        bool, typer.Option("--code", help="Print the code of the graphs instead.")
    ] = False,
    seed: Seed = 0,
    report: Report = None,
    json: Json = False,
    details: Details = False,
    debug: Debug = False,
) -> None:
    """Show how much of MODEL becomes graphs, and what runs its own code and why."""
    with told(debug=debug):
        from fxpasses.cli import commands  # noqa: PLC0415  it loads torch

        commands.capture(
            Subject(model, tuple(input or ()), train=train, seed=seed),
            Capturing(sizes, tuple(leaf or ()), code=code),
            Showing(report, json=json, details=details),
        )


@app.command(short_help="What will cost speed, and what to do about it.")
def advise(  # noqa: PLR0913  each is an option of the command
    *,
    model: Model,
    input: Inputs = None,  # noqa: A002  the name of the option
    train: Train = False,
    seed: Seed = 0,
    report: Report = None,
    json: Json = False,
    details: Details = False,
    debug: Debug = False,
) -> None:
    """Show what will cost speed in MODEL, with source lines and what to do about it."""
    with told(debug=debug):
        from fxpasses.cli import commands  # noqa: PLC0415  it loads torch

        commands.advise(
            Subject(model, tuple(input or ()), train=train, seed=seed),
            Showing(report, json=json, details=details),
        )


@app.command(short_help="The graph of a model, as a picture or as text.")
def draw(  # noqa: PLR0913  each is an option of the command
    *,
    model: Model,
    input: Inputs = None,  # noqa: A002  the name of the option
    train: Train = False,
    output: Output = None,
    color: Colors = Color.CHANGE,
    focus: Focus = None,
    hops: Hops = 2,
    most_boxes: Boxes = 150,
    renderer: Drawer = None,
    seed: Seed = 0,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Draw the graph of MODEL, or print it."""
    with told(debug=debug):
        from fxpasses.cli import pictures  # noqa: PLC0415  it loads torch

        pictures.draw(
            Subject(model, tuple(input or ()), train=train, seed=seed),
            Picture(output, color, focus, hops, most_boxes, renderer, json),
        )


@app.command(
    short_help="What passes do to a model, as a picture or as text.",
    epilog="Such as: fxpasses diff torchvision:resnet18 -i 1x3x224x224 -o diff.svg",
)
def diff(  # noqa: PLR0913  each is an option of the command
    *,
    model: Model,
    passes: Passes = "inference",
    input: Inputs = None,  # noqa: A002  the name of the option
    target: Target = None,
    train: Train = False,
    skip: Skip = None,
    only: Only = None,
    registry: Registries = None,
    output: Output = None,
    color: Colors = Color.CHANGE,
    focus: Focus = None,
    hops: Hops = 2,
    most_boxes: Boxes = 150,
    renderer: Drawer = None,
    seed: Seed = 0,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Draw MODEL before and after the passes as one graph: what came, went, changed, was refused.

    Nothing is verified, except for --color error.
    """
    with told(debug=debug):
        from fxpasses.cli import pictures  # noqa: PLC0415  it loads torch

        pictures.diff(
            Subject(model, tuple(input or ()), train=train, seed=seed),
            _pipeline(passes, registry, target, skip, only),
            Picture(output, color, focus, hops, most_boxes, renderer, json),
        )


@app.command(
    short_help="Time, memory and FLOPs of every node.",
    epilog="Such as: fxpasses profile torchvision:resnet18 -p inference -i 1x3x224x224",
)
def profile(  # noqa: PLR0913  each is an option of the command
    *,
    model: Model,
    passes: Annotated[
        str | None,
        typer.Option(
            "--passes",
            "-p",
            metavar="PIPELINE",
            show_default=False,
            help="Measure what these passes make of the model; without, the model as it is.",
        ),
    ] = None,
    input: Inputs = None,  # noqa: A002  the name of the option
    target: Target = None,
    train: Train = False,
    repeats: Annotated[
        int, typer.Option(metavar="N", min=1, help="How often time is measured.")
    ] = 5,
    finite: Annotated[
        bool, typer.Option("--finite", help="Name the nodes that make NaN or Inf.")
    ] = False,
    trace: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            show_default=False,
            help="Write a trace of torch's profiler, with ranges named after the nodes: .json, "
            ".json.gz.",
        ),
    ] = None,
    skip: Skip = None,
    only: Only = None,
    registry: Registries = None,
    seed: Seed = 0,
    report: Report = None,
    json: Json = False,
    details: Details = False,
    debug: Debug = False,
) -> None:
    """Show time, memory and FLOPs of every node and module in one forward of MODEL."""
    with told(debug=debug):
        from fxpasses.cli import commands  # noqa: PLC0415  it loads torch

        made = passes is not None or target is not None
        commands.profile(
            Subject(model, tuple(input or ()), train=train, seed=seed),
            _pipeline(passes or "", registry, target, skip, only) if made else None,
            Profiling(repeats, finite=finite, trace=trace),
            Showing(report, json=json, details=details),
        )


def _pipeline(
    passes: str,
    registry: list[Path] | None,
    target: str | None,
    skip: list[str] | None,
    only: list[str] | None,
) -> Pipeline:
    chosen = None if only is None else tuple(only)
    return Pipeline(passes, tuple(registry or ()), target, tuple(skip or ()), chosen)
