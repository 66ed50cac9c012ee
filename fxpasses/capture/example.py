"""Example arguments for a model that comes without any, where its layers say what they take."""

import inspect
from collections.abc import Callable, Iterator
from typing import Any, Final

import torch
from torch import Tensor, nn

from fxpasses.capture.arguments import Arguments
from fxpasses.capture.inside import all_modules, attributes_of, is_sealed
from fxpasses.capture.twins.own_tensors import OwnTensors
from fxpasses.capture.twins.twin import twin
from fxpasses.core.randomness import own_draws
from fxpasses.core.surroundings import surroundings_kept

# Smallest first: what a model rejects for its size, it rejects early.
_SIDES: Final = (32, 64, 96, 128, 160, 192, 224, 240, 256, 299, 320, 336, 384, 448, 512)
_LENGTHS: Final = (16, 64, 256, 1024, 4096, 16000)
_VOLUMES: Final = ((8, 32, 32), (16, 64, 64), (16, 112, 112), (32, 224, 224))
_ENTRY_LAYERS: Final = 3
_TRIES: Final = 24

_Shape = tuple[int, ...]


def infer_arguments(model: nn.Module) -> tuple[Arguments, str] | None:
    """Arguments that `model` accepts, guessed from its first layers, and what they are in words.

    The guesses are tried on a twin that owns its buffers; global random state stays as it is.

    Returns:
        The arguments and a text such as `1x3x224x224:float32`, or None where the model takes
        more than one argument, or accepts none of the guesses.
    """
    if not _takes_one_argument(model):
        return None
    with surroundings_kept(), own_draws():
        for count, guess in enumerate(_guesses(model)):
            if count == _TRIES:
                return None
            if _accepts(model, guess):
                shape = "x".join(str(size) for size in guess.shape)
                return Arguments((guess,), {}), f"{shape}:{str(guess.dtype).removeprefix('torch.')}"
    return None


def _takes_one_argument(model: nn.Module) -> bool:
    forward = attributes_of(model).get("forward")
    signature = inspect.signature(model.forward if forward is None else forward)
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = [p for p in signature.parameters.values() if p.kind in positional]
    required = [p for p in parameters if p.default is p.empty]
    needed_by_name = any(
        p.kind is p.KEYWORD_ONLY and p.default is p.empty for p in signature.parameters.values()
    )
    takes_any = any(p.kind is p.VAR_POSITIONAL for p in signature.parameters.values())
    return len(required) <= 1 and bool(parameters or takes_any) and not needed_by_name


def _accepts(model: nn.Module, guess: Tensor) -> bool:
    running, _ = twin(model, tensors=OwnTensors(model))
    try:
        running(guess.clone())
    except Exception:
        # Whatever a model raises on an input that it does not take.
        return False
    return True


def _guesses(model: nn.Module) -> Iterator[Tensor]:
    entries = 0
    for module in all_modules(model):
        if is_sealed(module):
            continue
        shapes = _shapes_for(module)
        if shapes is None:
            continue
        entries += 1
        for shape in shapes:
            yield _filled(module, shape)
        if entries == _ENTRY_LAYERS:
            return


def _shapes_for(layer: nn.Module) -> list[_Shape] | None:
    """What a layer takes, or None for modules that do not say."""
    for kinds, shapes in _RULES:
        if isinstance(layer, kinds):
            return shapes(layer)
    return None


def _flat(features: int) -> list[_Shape]:
    return [(1, features), (2, features), (1, 4, features)]


def _images(channels: int) -> list[_Shape]:
    return [(1, channels, side, side) for side in _SIDES]


def _signals(channels: int) -> list[_Shape]:
    return [(1, channels, length) for length in _LENGTHS]


def _volumes(channels: int) -> list[_Shape]:
    return [(1, channels, *sides) for sides in _VOLUMES]


_Rule = tuple[tuple[type[nn.Module], ...], Callable[[Any], list[_Shape]]]
_RULES: Final[tuple[_Rule, ...]] = (
    ((nn.Conv1d, nn.ConvTranspose1d), lambda layer: _signals(layer.in_channels)),
    ((nn.Conv2d, nn.ConvTranspose2d), lambda layer: _images(layer.in_channels)),
    ((nn.Conv3d, nn.ConvTranspose3d), lambda layer: _volumes(layer.in_channels)),
    ((nn.Linear,), lambda layer: _flat(layer.in_features)),
    ((nn.Embedding, nn.EmbeddingBag), lambda _: [(1, 8), (1, 64)]),
    ((nn.RNNBase,), lambda layer: [(4, 1, layer.input_size), (4, layer.input_size)]),
    ((nn.BatchNorm1d,), lambda layer: [(2, layer.num_features), *_signals(layer.num_features)]),
    ((nn.BatchNorm2d, nn.InstanceNorm2d), lambda layer: _images(layer.num_features)),
    ((nn.BatchNorm3d, nn.InstanceNorm3d), lambda layer: _volumes(layer.num_features)),
    (
        (nn.LayerNorm,),
        lambda layer: [(1, *layer.normalized_shape), (1, 4, *layer.normalized_shape)],
    ),
)


def _filled(layer: nn.Module, shape: _Shape) -> Tensor:
    weight: Any = next((p for p in layer.parameters() if p.is_floating_point()), None)
    device = torch.device("cpu") if weight is None else weight.device
    if isinstance(layer, (nn.Embedding, nn.EmbeddingBag)):
        count = torch.arange(shape[-1]).expand(shape) * 7 + 1
        return (count % layer.num_embeddings).to(device)
    dtype = torch.get_default_dtype() if weight is None else weight.dtype
    seeded = torch.Generator().manual_seed(0)
    return torch.randn(shape, generator=seeded).to(device, dtype)
