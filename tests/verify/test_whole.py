"""What a pass without rewrites does to the whole."""

import copy
import weakref
from collections.abc import Callable
from importlib import import_module
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

import fxpasses
from fxpasses.capture import capture, fork
from fxpasses.core import Applied, Editor, Numerics, Program
from fxpasses.core.record import PassRecord
from fxpasses.verify import Cut, Verdict, check, verify
from fxpasses.verify.pieces import pieces
from tests.verify.faults import IMAGE, Plain
from tests.verify.support import Call, Case, Done, Reference, captured

IMAGES = torch.randn(IMAGE, generator=torch.Generator().manual_seed(1))
VECTORS = torch.randn(2, 4, generator=torch.Generator().manual_seed(1))


def verdict_on(case: Case, model: nn.Module, *args: Any, **options: Any) -> Verdict:
    torch.manual_seed(5)
    given = [arg.clone() if isinstance(arg, Tensor) else arg for arg in args]
    snapshot = torch.get_rng_state()
    with torch.no_grad():
        # On a copy: a model may write its buffers, which the programs share.
        reference = Reference(copy.deepcopy(model)(*given))
    torch.set_rng_state(snapshot)
    verdict = check(case.original, case.work, case.done, Call(args), reference, **options)
    assert torch.equal(torch.get_rng_state(), snapshot)
    return verdict


class Calls(nn.Module):
    """A model of one formula, with what formulas need."""

    def __init__(self, formula: Callable[..., Any]) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 4))
        self.register_buffer("steps", torch.zeros(4))
        self.formula = formula

    def forward(self, x: Tensor) -> Any:
        return self.formula(self, x)


def replaced(old: Callable[..., Any], new: Callable[..., Any], x: Tensor = VECTORS) -> Verdict:
    """The verdict on a foreign pass that makes a model of `old` into one of `new`."""
    model = Calls(old)
    case = captured(model)
    other = Calls(new)
    other.weight, other.steps = model.weight, model.steps
    case.work = captured(other).work
    case.foreign("rewired")
    return verdict_on(case, model, x)


def failures(verdict: Verdict) -> list[tuple[str, str]]:
    return [(one.name, one.message) for one in verdict.failures]


@pytest.mark.parametrize("numerics", [Numerics.ROUNDING, Numerics.EXACT])
@pytest.mark.parametrize("scale", [1.001, -1.0])
def test_a_graph_that_is_not_the_model_fails(scale: float, numerics: Numerics) -> None:
    """Nothing that a pass did: the model computes something else than what was captured."""
    model = Plain().eval()
    case = captured(model)
    case.foreign("idle", numerics=numerics)
    with torch.no_grad():
        other = Reference(scale * model(IMAGES))

    verdict = check(case.original, case.work, case.done, Call((IMAGES,)), other)

    assert not verdict.ok
    assert [name for name, _ in failures(verdict)] == ["capture"]
    assert "the captured graph is not the model" in verdict.failures[0].message
    assert [blame.pass_name for blame in verdict.blame] == []


def test_weights_off_by_a_percent_fail() -> None:
    model = Plain().eval()
    case = captured(model)
    head = case.work.graphs[""].get_submodule("parts.head")
    case.work.graphs[""].get_submodule("parts").head = nn.Linear(8, 6)
    changed = case.work.graphs[""].get_submodule("parts.head")
    changed.weight = nn.Parameter(head.weight * 1.01)
    changed.bias = head.bias
    case.foreign("scaled")

    verdict = verdict_on(case, model, IMAGES)

    assert {name for name, _ in failures(verdict)} == {"precision", "meaning"}
    assert [blame.pass_name for blame in verdict.blame] == ["scaled"]


def test_swapped_outputs_fail() -> None:
    verdict = replaced(lambda m, x: (x @ m.weight, x + 1), lambda m, x: (x + 1, x @ m.weight))

    assert not verdict.ok


WRONG: dict[str, tuple[Any, Any, str]] = {
    "dtype": (lambda m, x: x + 1, lambda m, x: (x + 1).double(), "dtype"),
    "shape": (lambda m, x: x + 1, lambda m, x: (x + 1)[:, :2], "shape"),
    "structure": (lambda m, x: (x, x + 1), lambda m, x: [x, x + 1], "structured"),
    "type of a container": (lambda m, x: {"a": x + 1}, lambda m, x: {"b": x + 1}, "structured"),
    "strides": (
        lambda m, x: x.unsqueeze(2).repeat(1, 1, 3),
        lambda m, x: x.unsqueeze(1).repeat(1, 3, 1).transpose(1, 2),
        "cannot be viewed",
    ),
    "shared memory with an argument": (
        lambda m, x: x.view(-1) * 1,
        lambda m, x: x.view(-1),
        "shares memory with argument 0",
    ),
    "shared memory of outputs": (
        lambda m, x: (x + 1, x + 1),
        lambda m, x: 2 * (x + 1,),
        "shares memory with output 0",
    ),
    "argument no longer written": (
        lambda m, x: x.add_(1) * 2,
        lambda m, x: (x + 1) * 2,
        "no longer writes argument 0",
    ),
    "argument written": (
        lambda m, x: (x + 1) * 2,
        lambda m, x: x.add_(1) * 2,
        "writes argument 0",
    ),
    "argument written otherwise": (
        lambda m, x: x.add_(1) * 0,
        lambda m, x: x.add_(1.001) * 0,
        "relative error",
    ),
    "buffer no longer written": (
        lambda m, x: x + m.steps.add_(1) * 0,
        lambda m, x: x + m.steps * 0,
        "no longer writes steps",
    ),
    "buffer written": (
        lambda m, x: x + m.steps * 0,
        lambda m, x: x + m.steps.add_(1) * 0,
        "writes steps",
    ),
    "buffer written otherwise": (
        lambda m, x: x + m.steps.add_(1) * 0,
        lambda m, x: x + m.steps.add_(1.001) * 0,
        "relative error",
    ),
    "random numbers lost": (
        lambda m, x: x + 0 * F.dropout(x, 0.5, True),
        lambda m, x: x + 0 * x,
        "other random numbers",
    ),
    "raises": (lambda m, x: x + 1, lambda m, x: x.view(3, 5), "raises RuntimeError"),
    "shape baked in": (lambda m, x: x.view(-1, 2), lambda m, x: x.view(4, 2), "raises"),
    "value baked in": (
        lambda m, x: x - x.mean(),
        lambda m, x: x - float(VECTORS.mean()),
        "relative error",
    ),
    "constant off by a ten-thousandth": (
        lambda m, x: torch.tanh(x @ m.weight),
        lambda m, x: torch.tanh(x @ m.weight * 1.0001),
        "relative error",
    ),
    "not a number": (lambda m, x: x + 1, lambda m, x: x + 1 + 0 * (x - x) / (x - x), "NaN"),
    "inputs of an argmax": (
        lambda m, x: (x @ m.weight).argmax(1),
        lambda m, x: (x @ m.weight * torch.tensor([1.0, 1.001, 1.0, 1.0])).argmax(1),
        "relative error",
    ),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_faults_of_the_whole_are_seen(wrong: str) -> None:
    old, new, message = WRONG[wrong]

    verdict = replaced(old, new)

    assert not verdict.ok
    assert any(message in text for _, text in failures(verdict)), failures(verdict)
    assert [blame.pass_name for blame in verdict.blame] == ["rewired"]


RIGHT: dict[str, tuple[Any, Any]] = {
    "sums split": (
        lambda m, x: x @ m.weight,
        lambda m, x: x[:, :2] @ m.weight[:2] + x[:, 2:] @ m.weight[2:],
    ),
    "argument written": (lambda m, x: x.mul_(2) + 1, lambda m, x: x.mul_(2.0).add(1)),
    "buffer written": (
        lambda m, x: x + m.steps.add_(1),
        lambda m, x: torch.add(m.steps.add_(1), x),
    ),
    "a view of an argument": (lambda m, x: x.view(-1), lambda m, x: x.reshape(-1)),
    "overflow": (lambda m, x: (x * 1e30) ** 2, lambda m, x: (x * 1e30) * (x * 1e30)),
    "not a number": (lambda m, x: torch.sqrt(x), lambda m, x: x.sqrt()),
    "decided by rounding": (
        lambda m, x: torch.cat([x * 3, x * 3 + 0 * x], 1).argmax(1),
        lambda m, x: torch.cat([x * 3, (x + x + x)], 1).argmax(1),
    ),
    "random numbers": (
        lambda m, x: F.dropout(x @ m.weight, 0.5, True),
        lambda m, x: F.dropout(torch.mm(x, m.weight), 0.5, True),
    ),
}


@pytest.mark.parametrize("right", RIGHT)
def test_what_is_equal_passes(right: str) -> None:
    verdict = replaced(*RIGHT[right])

    assert verdict.ok, failures(verdict)
    assert verdict.record.forwards <= 8


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_models_are_judged_in_float64(dtype: torch.dtype) -> None:
    model = Calls(lambda m, x: torch.tanh(x @ m.weight)).to(dtype)
    case = captured(model)
    other = Calls(lambda m, x: torch.tanh(x @ m.weight * 1.0001)).to(dtype)
    other.weight = model.weight
    case.work = captured(other).work
    case.foreign("scaled")

    verdict = verdict_on(case, model, VECTORS.to(dtype))

    assert {name for name, _ in failures(verdict)} == {"meaning"}


class Counts(nn.Module):
    calls = 0

    def forward(self, x: Tensor) -> Tensor:
        Counts.calls += 1
        return x * Counts.calls


def test_a_model_that_differs_from_itself_is_not_blamed_on_anybody() -> None:
    model = Calls(lambda m, x: x @ m.weight)
    model.counts = Counts()
    case = captured(model)
    for program in (case.original, case.work):
        graph_module = program.graphs[""]
        graph_module.counts = model.counts
        graph = graph_module.graph
        output = next(node for node in graph.nodes if node.op == "output")
        with graph.inserting_before(output):
            counted = graph.call_module("counts", (output.args[0],))
        counted.meta["stands_for"] = counted.name
        output.args = (counted,)
        graph_module.recompile()
    case.foreign()

    verdict = verdict_on(case, case.original.root, VECTORS)

    assert verdict.ok
    assert verdict.record.ok is None
    assert verdict.blame == []
    assert any("differs from itself" in note for note in verdict.record.notes)


def test_exact_pipelines_are_compared_to_the_bit() -> None:
    def run(new: Callable[..., Any], numerics: Numerics) -> Verdict:
        model = Calls(lambda m, x: x * 0.1 @ m.weight)
        case = captured(model)
        other = Calls(new)
        other.weight = model.weight
        case.work = captured(other).work
        case.foreign(numerics=numerics)
        return verdict_on(case, model, VECTORS)

    same = lambda m, x: torch.matmul(x * 0.1, m.weight)  # noqa: E731
    rounded = lambda m, x: x / 10 @ m.weight  # noqa: E731
    assert run(same, Numerics.EXACT).ok
    assert [name for name, _ in failures(run(rounded, Numerics.EXACT))] == ["exact"]
    assert run(rounded, Numerics.ROUNDING).ok


def test_lower_precision_is_measured_by_autocast() -> None:
    def run(new: Callable[..., Any]) -> Verdict:
        model = Calls(lambda m, x: torch.tanh(x @ m.weight) @ m.weight)
        case = captured(model)
        other = Calls(new)
        other.weight = model.weight
        case.work = captured(other).work
        case.foreign(numerics=Numerics.PRECISION)
        return verdict_on(case, model, VECTORS)

    def halves(m: Calls, x: Tensor) -> Tensor:
        w = m.weight.bfloat16()
        return (torch.tanh(x.bfloat16() @ w) @ w).float()

    def worse(m: Calls, x: Tensor) -> Tensor:
        w = (m.weight * 4).round() / 4
        return torch.tanh(x @ w) @ w

    assert run(halves).ok
    assert not run(worse).ok


def test_a_change_of_meaning_must_leave_alone_what_comes_before() -> None:
    def run(also: bool) -> Verdict:
        model = Calls(lambda m, x: torch.relu(torch.tanh(x @ m.weight)) + 1)
        case = captured(model)

        def swap(edit: Any) -> None:
            node = case.named("relu")
            edit.replace(node, edit.call_function(F.silu, node.args[0]))

        case.apply(swap, "relu", name="swap", numerics=Numerics.MEANING)
        if also:
            case.named("tanh").target = torch.sin
        cuts = [Cut(case.done[0].record, case.original, case.work)]
        return verdict_on(case, model, VECTORS, cuts=cuts)

    assert run(also=False).ok
    assert "tanh" in failures(run(also=True))[0][1]


def test_a_pipeline_is_cut_at_changes_of_meaning() -> None:
    case = captured(Calls(lambda m, x: x))
    for numerics in (Numerics.EXACT, Numerics.ROUNDING, Numerics.MEANING, Numerics.ROUNDING):
        case.foreign(str(numerics), numerics)
    cuts = [Cut(case.done[2].record, case.original, case.work)]

    parts = pieces(case.original, case.work, case.done, cuts)

    cut = [[run.record.name for run in part.passes] for part in parts]
    assert cut == [["exact", "rounding"], ["meaning"], ["rounding"]]
    with pytest.raises(ValueError, match="meaning"):
        pieces(case.original, case.work, case.done, [])


def test_without_an_example_nothing_is_claimed() -> None:
    case = captured(Plain().eval())

    verdict = check(case.original, case.work, [], None, None)

    assert verdict.ok
    assert verdict.record.ok is None
    assert verdict.record.forwards == 0


def test_any_two_modules_can_be_compared() -> None:
    model = Plain().eval()
    other = Plain().eval()
    other.load_state_dict(model.state_dict())
    assert verify(model, other, IMAGES).ok

    other.parts.head.weight.data *= 1.01
    verdict = verify(model, other, (IMAGES,))
    assert not verdict.ok
    assert verdict.outputs
    assert verdict.worst is not None
    assert verdict.worst.bound < verdict.worst.error


def test_integers_are_drawn_within_the_range_of_the_example() -> None:
    class Embeds(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(10, 4)

        def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
            return self.table(ids) * mask.unsqueeze(-1)

    model = Embeds()
    case = captured(model)
    case.foreign()

    ids, mask = torch.tensor([[1, 9, 3], [4, 5, 6]]), torch.tensor([[True, False, True]] * 2)
    verdict = verdict_on(case, model, ids, mask)

    assert verdict.ok
    assert any("in one batch" in check.probe for check in verdict.record.checks)


def test_slow_models_get_fewer_probes(monkeypatch: pytest.MonkeyPatch) -> None:
    # By name: the function `verify` stands in front of the package.
    monkeypatch.setattr(import_module("fxpasses.verify.stages"), "PATIENCE", 0.0)
    model = Plain().eval()
    case = captured(model)
    case.foreign()

    verdict = verdict_on(case, model, IMAGES)

    assert any("left out" in note for note in verdict.record.notes)
    assert verdict.record.forwards == 5


def test_full_verification_tries_every_probe() -> None:
    model = Plain().eval()
    case = captured(model)
    case.foreign()

    verdict = verdict_on(case, model, IMAGES, level="full")

    probes = {check.probe for check in verdict.record.checks if check.name == "meaning"}
    assert {"example", "zeros", "example x 10", "other values"} < probes
    assert verdict.ok


class Branches(nn.Module):
    """Runs its own code, because it decides on values; its children are captured."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = Block(), Block()
        self.others = [nn.BatchNorm1d(4).eval()]
        self.calls = 0

    def forward(self, x: Tensor) -> Any:
        self.calls += 1
        y = self.first(x)
        y = y * 2 if y.sum() > 0 else y + 1
        return self.second(self.first(self.others[0](y))), y.argmax(1)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(4, 4), nn.BatchNorm1d(4)
        nn.init.normal_(self.norm.running_mean)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.norm(self.linear(x)))


@pytest.mark.parametrize("factor", [1.0, 1.001])
def test_graphs_below_a_module_that_runs_its_own_code(factor: float) -> None:
    model = Branches().eval()
    found = capture(model, (VECTORS,))
    work = fork(found.program)
    assert set(work.graphs) == {"first", "second"}
    applied = {path: fold_linear(work, path, factor) for path in ("first", "second")}
    record = PassRecord(1, "fold", {}, "rounding", status="changed")
    done = Done(record, applied, Numerics.ROUNDING)

    verdict = check(found.program, work, [done], found.arguments, found.reference)

    wrong = [one.id for one in applied["second"]]
    assert [blame.id for blame in verdict.blame] == ([] if factor == 1.0 else wrong)
    assert verdict.ok == (factor == 1.0)
    assert verdict.record.unverified == []
    assert model.calls == 0


def fold_linear(work: Program, path: str, factor: float) -> list[Applied]:
    module = work.graphs[path]
    node = next(n for n in module.graph.nodes if n.name.endswith("norm"))
    (before,) = node.all_input_nodes
    linear = module.get_submodule(before.target)
    norm = module.get_submodule(node.target)
    off = factor if path == "second" else 1.0

    def weight(w: Tensor, g: Tensor, v: Tensor) -> Tensor:
        return off * w * (g / torch.sqrt(v + norm.eps)).unsqueeze(1)

    def bias(b: Tensor, g: Tensor, v: Tensor, m: Tensor, a: Tensor) -> Tensor:
        return (b - m) * g / torch.sqrt(v + norm.eps) + a

    with (
        Editor(module, "fold", folds=work.folds, keep_regions=True) as edit,
        edit.rewrite(f"1:fold@{path}/{node.name}", node),
    ):
        stats = norm.weight, norm.running_var
        w = edit.fold(weight, linear.weight, *stats)
        b = edit.fold(bias, linear.bias, *stats, norm.running_mean, norm.bias)
        folded = edit.constant(w.value, "weight"), edit.constant(b.value, "bias")
        new = edit.call_function(F.linear, before.args[0], *folded)
        edit.replace(node, new, absorbing=[before])
    return edit.applied


def test_hooks_are_named() -> None:
    model = Plain().eval()
    case = captured(model)
    case.original.root.get_submodule("parts.head").register_forward_hook(lambda m, a, o: None)
    case.foreign()

    verdict = verdict_on(case, model, IMAGES)

    assert "hooks run with every forward of the verification: parts.head" in verdict.record.notes


def test_values_are_freed_as_the_walk_goes() -> None:
    alive: list[int] = []
    seen: list[weakref.ref[Tensor]] = []

    def counted(x: Tensor) -> Tensor:
        seen.append(weakref.ref(x))
        alive.append(sum(ref() is not None for ref in seen))
        return x * 1.01

    def long(m: Calls, x: Tensor) -> Tensor:
        for _ in range(40):
            x = fx.Proxy.__torch_function__(counted, (), (x,)) if isinstance(x, fx.Proxy) else x
        return x

    case = captured(Calls(long))
    case.foreign()
    alive.clear()
    assert verdict_on(case, case.original.root, VECTORS).ok
    assert len(alive) >= 40 * 6
    # The arguments of each run are kept to be compared; of the values on the way two at a time.
    assert max(alive) < 10


def test_channels_of_images_in_a_list_are_no_samples() -> None:
    """Three rows make another batch of samples, but no image has four channels."""

    class OfImages(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 5, 3)

        def forward(self, images: list[Tensor]) -> Tensor:
            return self.conv(images[0][None]).amax((2, 3)) + images[1].mean()

    model = OfImages().eval()
    case = captured(model)
    case.foreign("nothing")

    verdict = verdict_on(case, model, [torch.randn(3, 8, 8), torch.randn(3, 8, 8)])

    assert verdict.ok
    # The reference, in float64, two neutral runs, the result; then both on zeros.
    assert verdict.record.forwards == 7


def test_sizes_are_compared_as_what_they_are() -> None:
    class Sizes(nn.Module):
        def forward(self, x: Tensor) -> Any:
            return x.relu(), x.shape, {"size": [x.shape]}

    x = torch.randn(3, 4)
    fast = fxpasses.run(Sizes(), "dce", (x,))

    _, size, held = fast(x)
    assert (type(size), type(held["size"][0])) == (torch.Size, torch.Size)
    assert fxpasses.report(fast).record.verification.ok


def test_what_only_takes_away_is_no_suspect() -> None:
    """Of a result that is wrong as a whole, the pass is not accused that cannot change values."""
    model = Plain().eval()
    case = captured(model)
    module = case.work.graphs[""]
    with (
        Editor(module, "clean", folds=case.work.folds, keep_regions=True) as edit,
        edit.rewrite("1:clean@/parts_bn", case.named("parts_bn")),
    ):
        edit.remove_attribute("parts.norm.unused")
    case._done("clean", Numerics.EXACT, edit.applied)
    case.foreign("guilty")
    output = case.graph.output_node()
    with case.graph.inserting_before(output):
        output.args = (case.graph.call_function(torch.neg, output.args),)

    verdict = verdict_on(case, model, IMAGES)

    assert [blame.pass_name for blame in verdict.blame] == ["guilty"]
