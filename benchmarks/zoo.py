"""All of torchvision, one model of each of timm's modules, and transformers: a sweep.

Run it in a clone as `python -m benchmarks.zoo [--only PATTERN] [--no-verify]`. Each model is
measured in a process of its own, with a bound on memory and time; what is measured is kept in a
file of JSON lines, so that a sweep that was stopped goes on where it was. `--table` writes
benchmarks/results/zoo.md from it.
"""

import argparse
import contextlib
import dataclasses
import fnmatch
import json
import multiprocessing
import os
import resource
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Final

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks.zoo_measure import Outcome, measure
from benchmarks.zoo_models import Entry, entries, entry_of
from benchmarks.zoo_table import as_markdown

_RESULTS: Final = Path(__file__).resolve().parent / "results"
_GIB: Final = 1 << 30

# Every model's process is a fork of one that has imported all of this once.
_FORKS: Final = multiprocessing.get_context("forkserver")
_IMPORTED_ONCE: Final = ["__main__", "torch._dynamo", "torchvision", "timm", "transformers"]

Lookup = Callable[[str], Entry]


@dataclass(frozen=True)
class Bounds:
    """What the measurement of one model may take."""

    seconds: float = 900.0
    gibibytes: float = 14.0


class State:
    """What has been measured, in a file of JSON lines. The last line of a model holds."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.outcomes: dict[str, Outcome] = {}
        if path.exists():
            for line in path.read_text(encoding="utf-8").splitlines():
                self._keep(read(line))

    def _keep(self, outcome: Outcome) -> None:
        self.outcomes[outcome.key] = outcome

    def add(self, outcome: Outcome) -> None:
        self._keep(outcome)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a", encoding="utf-8") as file:
            file.write(f"{written(outcome)}\n")

    def lacks(self, entry: Entry, *, verify: bool, retry: bool) -> bool:
        """Whether `entry` is still to be measured."""
        found = self.outcomes.get(entry.key)
        if found is None or (verify and not found.verify):
            return True
        return retry and bool(found.problem or found.verified is False)


def written(outcome: Outcome) -> str:
    return json.dumps(dataclasses.asdict(outcome))


def read(line: str) -> Outcome:
    return Outcome(**json.loads(line))


# -- the sweep


def sweep(
    waiting: Sequence[Entry],
    state: State,
    bounds: Bounds,
    *,
    verify: bool,
    jobs: int = 1,
    lookup: Lookup = entry_of,
) -> None:
    """Measure what is waiting, with a progress bar on the terminal.

    `lookup` finds an entry by its key in the process of a model.
    """
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    console = Console(stderr=True)
    with Progress(*columns, console=console) as progress, ThreadPoolExecutor(jobs) as pool:
        task = progress.add_task("the zoo", total=len(waiting))

        def one(entry: Entry) -> Outcome:
            progress.update(task, description=entry.key)
            return in_a_process(entry, bounds, verify=verify, lookup=lookup)

        for done in as_completed([pool.submit(one, entry) for entry in waiting]):
            outcome = done.result()
            state.add(outcome)
            progress.advance(task)
            progress.console.print(summary(outcome), highlight=False)


def in_a_process(entry: Entry, bounds: Bounds, *, verify: bool, lookup: Lookup) -> Outcome:
    """Measure one model in a process that is ended when it takes too much."""
    receiver, sender = _FORKS.Pipe(duplex=False)
    process = _FORKS.Process(
        target=_measure,
        args=(sender, lookup, entry.key, bounds.gibibytes),
        kwargs={"verify": verify},
    )
    process.start()
    sender.close()
    try:
        if receiver.poll(bounds.seconds):
            return read(receiver.recv())
        problem = f"takes more than {bounds.seconds:.0f} s"
    except EOFError:
        process.join()
        problem = f"its process ended with {process.exitcode}"
    finally:
        process.kill()
        process.join()
    return Outcome(entry.key, entry.note, problem=problem, verify=verify)


def _measure(
    sender: Connection, lookup: Lookup, key: str, gibibytes: float, *, verify: bool
) -> None:
    limit = int(gibibytes * _GIB)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    torch.set_num_threads(1)
    # What models print would tear the progress bar.
    with Path(os.devnull).open("w") as nowhere:
        os.dup2(nowhere.fileno(), sys.stdout.fileno())
        os.dup2(nowhere.fileno(), sys.stderr.fileno())
    sender.send(written(measure(lookup(key), verify=verify)))


def summary(outcome: Outcome) -> str:
    """One line on one model, for the terminal."""
    if outcome.problem:
        return f"{outcome.key}: {outcome.problem.splitlines()[0]}"
    covered = f"{outcome.calls or 0:.1%} of calls, {outcome.flops or 0:.1%} of FLOPs"
    verified = {True: ", verified", False: ", WRONG", None: ""}[outcome.verified]
    return f"{outcome.key}: {covered}, {len(outcome.opaque)} opaque{verified}"


# -- the command line


def main(arguments: Sequence[str] | None = None) -> None:
    options = _options(arguments)
    state = State(options.state)
    if options.table:
        target = _RESULTS / "zoo.md"
        target.write_text(as_markdown(list(state.outcomes.values())), encoding="utf-8")
        print(f"written: {target}")
        return
    chosen = list(matching(entries(), options.only))
    waiting = [e for e in chosen if state.lacks(e, verify=options.verify, retry=options.retry)]
    print(f"{len(chosen)} models, {len(chosen) - len(waiting)} of them measured", flush=True)
    _FORKS.set_forkserver_preload(_IMPORTED_ONCE)
    bounds = Bounds(options.bound, options.gibibytes)
    with contextlib.suppress(KeyboardInterrupt):
        sweep(waiting, state, bounds, verify=options.verify, jobs=options.jobs)


def matching(known: Iterable[Entry], pattern: str) -> Iterator[Entry]:
    """The entries whose key (`timm/levit`, `detection/fcos_resnet50_fpn`) fits a shell pattern."""
    return (entry for entry in known if fnmatch.fnmatch(entry.key, pattern))


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", default="*", metavar="PATTERN", help="such as `timm/*vit*`")
    parser.add_argument("--jobs", type=int, default=1, help="models at a time")
    parser.add_argument(
        "--verify",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="otherwise only what is captured and folded is measured, in few forwards",
    )
    parser.add_argument("--bound", type=float, default=Bounds.seconds, help="seconds for one model")
    parser.add_argument("--gibibytes", type=float, default=Bounds.gibibytes, help="for one model")
    parser.add_argument("--retry", action="store_true", help="measure what failed again")
    parser.add_argument("--state", type=Path, default=_RESULTS / "zoo.jsonl")
    parser.add_argument("--table", action="store_true", help="write the table and end")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
