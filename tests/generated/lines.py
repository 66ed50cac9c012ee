"""What the lines of a random program may be, and random programs of such lines."""

import operator
from collections.abc import Iterator
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._ops import OpOverload

from fxpasses.ops import VOCABULARY, Op
from tests.generated.programs import Choose, Program, Writer
from tests.test_ops import OUT, Call, calls_of

# Undefined memory, and Python numbers out of data, which make the whole module run its own code.
_NEVER = {Op.EMPTY, Op.EMPTY_LIKE, Op.NEW_EMPTY, Op.ITEM, Op.ASSERT, Op.STRIDE}


def vocabulary(w: Writer) -> None:
    """Any spelling of any op, with a value among its operands."""
    call = w.choose(_calls(w.choose(_ops())))
    operands = iter(_operands(w, call))
    args = [next(operands) for _ in call.args]
    kwargs = [f"{name}={next(operands)}" for name in call.kwargs]
    if call.kind == "call_method":
        w.write(f"{args[0]}.{call.target}({', '.join([*args[1:], *kwargs])})")
    elif call.kind == "call_module":
        w.write(f"{w.hold('layer', _copied(call.target))}({', '.join([*args, *kwargs])})")
    elif (name := name_of(call.target)) is not None:
        w.write(f"{name}({', '.join([*args, *kwargs])})")


@cache
def _ops() -> tuple[Op, ...]:
    return tuple(op for op in VOCABULARY if op not in _NEVER and _calls(op))


@cache
def _calls(op: Op) -> tuple[Call, ...]:
    return tuple(c for c in calls_of(op) if not c.example.raises and not _has_out(c))


def _has_out(call: Call) -> bool:
    return any(value is OUT for value in (*call.args, *call.kwargs.values()))


def _operands(w: Writer, call: Call) -> Iterator[str]:
    is_first = True
    for value in (*call.args, *call.kwargs.values()):
        if isinstance(value, Tensor):
            yield _tensor(w, value, is_first=is_first)
            is_first = False
        elif isinstance(value, (list, tuple)) and any(isinstance(v, Tensor) for v in value):
            yield f"[{', '.join(_tensor(w, v, is_first=True) for v in value)}]"
        else:
            yield repr(value)


def _tensor(w: Writer, like: Tensor, *, is_first: bool) -> str:
    """A value of the same form, one that is made so, or, not as the first, a constant."""
    shape, dtype = tuple(like.shape), like.dtype
    same = w.value(lambda v: tuple(v.shape) == shape and v.dtype == dtype)
    if same is not None and w.choose((True, True, is_first)):
        return same
    if is_first and (dtype.is_floating_point or dtype is torch.int64):
        return f"fit({w.value()}, {shape}, {dtype})"
    return constant_like(w, like)


def constant_like(w: Writer, like: Tensor) -> str:
    is_trained = like.is_floating_point() and w.choose((True, False))
    copied = like.detach().clone()
    return w.hold("p" if is_trained else "b", nn.Parameter(copied) if is_trained else copied)


@cache
def name_of(target: Any) -> str | None:
    """How the text of a program calls a function."""
    if isinstance(target, OpOverload):
        return f"torch.ops.{target}"
    name = getattr(target, "__name__", "")
    for place, holder in (("torch", torch), ("F", F), ("operator", operator), ("Tensor", Tensor)):
        if getattr(holder, name, None) is target:
            return f"{place}.{name}"
    return None


def _copied(module: nn.Module) -> nn.Module:
    made = type(module).__new__(type(module))
    made.__dict__.update(module.__dict__)
    for kind in ("_parameters", "_buffers"):
        held = {n: t if t is None else _own(t) for n, t in getattr(module, kind).items()}
        made.__dict__[kind] = held
    return made


def _own(tensor: Tensor) -> Tensor:
    copied = tensor.detach().clone()
    return nn.Parameter(copied) if isinstance(tensor, nn.Parameter) else copied


_NORMS = {2: nn.BatchNorm1d, 3: nn.BatchNorm1d, 4: nn.BatchNorm2d}
_CONVS = {3: (nn.Conv1d, nn.ConvTranspose1d), 4: (nn.Conv2d, nn.ConvTranspose2d)}


def layer(w: Writer) -> None:
    """A convolution, a linear layer or a norm; one that is there already, or a new one."""
    if w.choose((*(False,) * 7, True)):
        several_layers(w)
        return
    name = w.floats(2, 3, 4)
    if name is None:
        return
    value = w.values[name]
    known = [m for m in w.module._modules if m.startswith(("conv", "linear", "norm"))]
    if known and w.choose((True, False, False)):
        w.write(f"self.{w.choose(known)}({name})")
        return
    usual = "conv" if value.dim() == 4 else "linear"
    kind = w.choose((usual, usual, "conv", "linear", "norm", "layernorm"))
    made = _made(w, kind, value)
    if made is None:
        return
    text = w.hold(kind, made.to(value.dtype))
    if kind != "norm" and w.choose((True, False)) and isinstance(made, (nn.Linear, nn.Conv2d)):
        function = "F.linear" if kind == "linear" else "F.conv2d"
        out = w.write(f"{function}({name}, {text}.weight, {text}.bias)")
    else:
        out = w.write(f"{text}({name})")
    if out is not None and kind in ("conv", "linear"):
        follow = w.choose((norm, norm, scale, None))
        if follow is not None:
            follow(w, out)


def several_layers(w: Writer) -> None:
    """Products of one value, read in many ways, and sums of products."""
    name = w.floats(2, 3, 4)
    if name is None:
        return
    last = w.names[name].shape[-1]
    made = [_product(w, name, last) for _ in range(w.choose((2, 2, 3, 5)))]
    known = [text for text in made if text is not None]
    for text in known:
        forms = ("{}.sigmoid()", "{}.view(-1)", "F.relu({}, inplace=True)", "{}.mul_(2)", "{} * 2")
        w.write(w.choose(forms).format(text))
    if len(known) > 1 and w.choose((True, False)):
        w.write(f"{known[0]} + {known[1]}")


def _product(w: Writer, name: str, last: int) -> str | None:
    dtype, width = w.names[name].dtype, w.choose((4, last, 3))
    if w.choose((True, False)):
        drawn = torch.rand((last, width), generator=torch.Generator().manual_seed(width))
        return w.write(f"{name} @ {w.hold('p', nn.Parameter(drawn.to(dtype)))}")
    layer = nn.Linear(last, width, bias=w.choose((True, False))).to(dtype)
    other = w.choose((name, name, f"{name}.cos()"))
    return w.write(f"{w.hold('linear', layer)}({other})")


def norm(w: Writer, name: str) -> None:
    value = w.names[name]
    kind = _NORMS.get(value.dim())
    if kind is None:
        return
    made = _settled(kind(value.shape[1]))
    if w.choose((True, False)):
        made = kind(value.shape[1], track_running_stats=False)
    w.write(f"{w.hold('norm', made.to(value.dtype))}({name})")


def scale(w: Writer, name: str) -> None:
    """A constant factor or summand, one or two of them."""
    for _ in range(w.choose((1, 2))):
        made = w.write(w.choose((f"{name} * 1.5", f"0.5 - {name}", f"{name} / 2")))
        name = made or name


def _made(w: Writer, kind: str, value: Tensor) -> nn.Module | None:
    channels, last = value.shape[1], value.shape[-1]
    if kind == "layernorm":
        return nn.LayerNorm(last)
    if kind == "linear":
        return _tied(w, nn.Linear(last, w.choose((last, 4)), bias=w.choose((True, False))))
    if kind == "norm":
        return _settled(_NORMS[value.dim()](channels))
    if value.dim() not in _CONVS:
        return None
    size, padding = w.choose(((1, 0), (3, 1), (2, 0)))
    made = w.choose(_CONVS[value.dim()])
    bias = w.choose((True, False))
    return _tied(w, made(channels, w.choose((channels, 4)), size, padding=padding, bias=bias))


def _tied(w: Writer, made: nn.Module) -> nn.Module:
    """With the weight of another layer of its class, where one fits."""
    for other in w.module._modules.values():
        fits = type(other) is type(made) and other.weight.shape == made.weight.shape
        if fits and w.choose((True, False)):
            made.weight = other.weight
    return made


def _settled(made: nn.Module) -> nn.Module:
    generator = torch.Generator().manual_seed(made.num_features)
    with torch.no_grad():
        made.running_mean.uniform_(-1, 1, generator=generator)
        made.running_var.uniform_(0.5, 2, generator=generator)
        made.weight.uniform_(0.5, 2, generator=generator)
        made.bias.uniform_(-1, 1, generator=generator)
    return made.eval()


_WRITES = ("add_({})", "mul_(2)", "relu_()", "sub_(0.5)", "zero_()", "copy_({})", "clamp_(-1, 1)")
_LOOKS = ("view(-1)", "transpose(0, -1)", "t()", "unsqueeze(0)", "detach()", "flatten(1)")


def write_in_place(w: Writer) -> None:
    """Into a value or a view of one; what was written is not always read again."""
    name = w.value()
    if name is None:
        return
    if w.choose((True, False)):
        name = w.write(f"{name}.{w.choose((*_LOOKS, '__getitem__((Ellipsis, 0))'))}") or name
    other = w.value() if w.choose((True, False)) else "1"
    w.write(f"{name}.{w.choose(_WRITES).format(other)}")


def write_a_buffer(w: Writer) -> None:
    known = [b for b in w.module._buffers if w.module._buffers[b].is_floating_point()]
    text = f"self.{w.choose(known)}" if known else w.hold("b", torch.ones(4))
    w.write(f"{text}.{w.choose(('add_(1)', 'mul_(0.5)'))}")
    combine(w, text)


def constant(w: Writer) -> None:
    """Something that is the same in each call, which a value is then combined with."""
    state = [f"self.{n}" for n in (*w.module._parameters, *w.module._buffers)]
    parts = (*state, "torch.arange(4)", "torch.ones(4)", "torch.full((2, 4), 0.5)", "torch.eye(4)")
    name = w.choose(parts) if w.choose((True, False)) else w.hold("p", nn.Parameter(_drawn(w)))
    for _ in range(w.choose((1, 2))):
        forms = ("{} * 2", "{}.exp()", "{} + 1", "{}.softmax(-1)", "{}.sum(-1)", "{} / 3")
        name = w.write(w.choose(forms).format(name)) or name
    combine(w, name)


def _drawn(w: Writer) -> Tensor:
    shape = w.choose(((4,), (1, 4), (4, 1, 1), ()))
    return torch.rand(shape, generator=torch.Generator().manual_seed(len(w.lines)))


def combine(w: Writer, other: str | None = None) -> None:
    name = w.value()
    other = other or w.value()
    forms = ("{} + {}", "{} * {}", "{} - {}", "torch.maximum({}, {})", "torch.cat([{}, {}])")
    w.write(w.choose(forms).format(name, other))


def again(w: Writer) -> None:
    if w.rights:
        w.write(w.choose(w.rights))


def cast(w: Writer) -> None:
    w.write(f"{w.value()}.{w.choose(('float()', 'double()', 'bfloat16()', 'half()', 'long()'))}")


def draw(w: Writer) -> None:
    name = w.floats()
    forms = ("F.dropout({}, 0.5)", "{} + torch.rand_like({})", "F.dropout({}, 0.5, training=False)")
    w.write(w.choose(forms).replace("{}", str(name)))


def activation(w: Writer) -> None:
    name = w.floats()
    forms = ("F.relu({})", "{}.relu()", "torch.relu({})", "F.relu({}, inplace=True)", "F.gelu({})")
    made = w.choose((*forms, "self.relu({})", "F.silu({})", "torch.sigmoid({})", "{}.tanh()"))
    if made.startswith("self") and "relu" not in w.module._modules:
        w.module.hold("relu", nn.ReLU())
    w.write(made.format(name))


def pieces(w: Writer) -> None:
    """Split and put together, reduced, moved about."""
    forms = ("{}.chunk(2, -1)", "{}.split(1)", "torch.stack([{}, {}])", "{}.mean(-1, keepdim=True)")
    more = ("{}.sum(0)", "{}.amax(-1)", "{}.flatten(1)", "{}.reshape(-1, 4)", "{}.permute(1, 0)")
    w.write(w.choose((*forms, *more, "{}[:, :2]", "{}.expand(2, 2, 4)")).replace("{}", w.value()))


def composite(w: Writer) -> None:
    """A layer of torch that is made of several ops: attention, or one step of a recurrence."""
    name = w.floats(2, 3)
    if name is None:
        return
    value, first = w.values[name], w.choose((True, False))
    size = value.shape[-1]
    heads = 1 if size % 2 else 2
    if value.dim() == 2 and w.choose((True, False)):
        cell = w.choose((nn.LSTMCell, nn.GRUCell, nn.RNNCell))(size, 4)
        w.write(f"{w.hold('cell', cell.to(value.dtype))}({name})")
    elif w.choose((True, False)):
        attention = nn.MultiheadAttention(size, heads, batch_first=first).to(value.dtype)
        out = w.write(f"{w.hold('attention', attention)}({name}, {name}, {name})")
        if out is not None and w.choose((True, False)):
            w.write(f"{out}[0]")
    else:
        made = nn.TransformerEncoderLayer(size, heads, 4, batch_first=first).to(value.dtype)
        w.write(f"{w.hold('layer', made.eval())}({name})")


def nested(w: Writer) -> None:
    """A module of its own, which may run its own code, or hold a hook."""
    name = w.value()
    if name is None or w.depth > 1:
        return
    inner = Writer(w.choose, [w.values[name]], w.depth + 1)
    fill(inner, w.choose((1, 2, 3)))
    if w.choose((False, False, False, True)):
        last = list(inner.values)[-1]
        inner.write(f"{last} if bool((x0 == x0).any()) else x0")
    made = inner.finished()
    if w.choose((False, False, False, True)):
        made.register_forward_hook(_hook)
    w.write(f"{w.hold('block', made)}({name})")


def _hook(module: nn.Module, args: Any, result: Any) -> Any:
    return result * 2 if isinstance(result, Tensor) else result


_ON_SCORES = (
    *("{} * 0.3", "{} / 2", "{} * -1", "{}.mul_(0.5)", "{}.float()", "{} + {bias}", "{bias} - {}"),
    *("{}.add_({bias})", "{}.masked_fill({mask}, -inf)", "{}.masked_fill(~{mask}, -1e9)"),
    *("{}.masked_fill_({mask}, -2)", "torch.where({mask}, {}, -inf)", "{}.tanh()"),
    "{} + torch.full_like({}, -inf).triu(1)",
)


def attention(w: Writer) -> None:
    """Of a value to itself, with this and that in between."""
    value = w.floats(2, 3, 4)
    name = value and w.write(w.choose(("{} * 0.5", "{}.detach()", "{} + 0")).format(value))
    keys = w.choose(("transpose(-2, -1)", "mT", "transpose(-1, -2).contiguous()"))
    scores = name and w.write(f"{name} @ {value}.{keys}")
    if not scores:
        return
    for _ in range(w.choose((0, 1, 1, 2, 3))):
        form = w.choose(_ON_SCORES)
        held = {key: _of_scores(w, scores, key) for key in ("mask", "bias") if key in form}
        scores = w.write(form.replace("{}", scores).format(**held)) or scores
    weights = w.write(f"{scores}.softmax({w.choose((-1, -1, -1, -2))})")
    if weights and w.choose((True, False, False)):
        weights = w.write(f"F.dropout({weights}, 0.5, {w.choose((False, 'self.training'))})")
    if weights:
        w.write(f"{weights} @ {w.choose((value, f'{name}.clone()'))}")


def _of_scores(w: Writer, scores: str, kind: str) -> str:
    """A mask of true and false, or a weight, of the size of scores."""
    size = w.names[scores].shape[-2:]
    drawn = torch.rand(size, generator=torch.Generator().manual_seed(len(w.lines)))
    return w.hold(kind, drawn > 0.5 if kind == "mask" else nn.Parameter(drawn))


OFTEN = (vocabulary, layer)
SOMETIMES = (activation, attention, constant, write_in_place, again, combine, pieces)
SELDOM = (nested, cast, draw, write_a_buffer, composite)
LINES = (*OFTEN * 5, *SOMETIMES * 2, *SELDOM)


def fill(w: Writer, lines: int) -> None:
    for _ in range(lines):
        w.choose(LINES)(w)


INPUTS = ((2, 4), (2, 4, 5, 5), (3, 4), (2, 4, 4, 4), (2, 3, 4), (4,), (3, 4, 4), (1, 4))
DTYPES = (torch.float32, torch.float32, torch.float32, torch.float64, torch.bfloat16, torch.int64)


def written(choose: Choose[Any]) -> tuple[Program, tuple[Tensor, ...]]:
    """A module and the arguments of one call."""
    inputs = tuple(_input(choose, number) for number in range(choose((1, 1, 2))))
    writer = Writer(choose, inputs)
    fill(writer, choose((3, 5, 7, 9)))
    return writer.finished(), inputs


def _input(choose: Choose[Any], number: int) -> Tensor:
    shape, dtype = choose(INPUTS), choose(DTYPES)
    drawn = torch.randn(shape, generator=torch.Generator().manual_seed(number))
    return drawn.to(dtype) if dtype.is_floating_point else (drawn * 2).to(dtype)
