"""Tensors that say they are on a GPU: real arithmetic on the CPU, and a ledger of what a GPU would have to wait for.

    model = on_gpu(copy.deepcopy(model))            all weights say cuda:0 (or as a map of blocks to devices says)
    with pretending() as ledger:
        ... run the code under test with `model` ...
    ledger.waits, ledger.copies("to_host"), ledger.table()

A wrapper subclass holds the real tensor. Every operation arrives at `__torch_dispatch__`, below torch's own functions:
operands on different devices raise there, as CUDA would, and what makes CUDA wait is counted with the line that asked
for it. Autograd lies above and works as always. `pretending` answers for what comes before dispatch: `device=`
arguments, `.to`, `.cpu`, `.numpy`.

What is counted, after torch's CUDA code:

* `wait`: the host needs a number or a shape (item, bool, tolist, nonzero, a boolean index, unique, bincount, ...);
* `to_host`: a copy from a device, which waits as well;
* `to_device`: a copy to a device without `non_blocking`: torch synchronises the stream after it, so it waits, too;
* `sent`: a copy to a device with `non_blocking`, which does not;
* `between`: a copy from one device to another, which does not.

What this cannot show: speed, kernels, memory of a device, streams, other rounding.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map

import vestige

CPU = torch.device("cpu")
PACKAGE = f"{Path(vestige.__file__).parent}{os.sep}"  # the checkout itself may lie in a folder called vestige
WAITING = ("wait", "to_host", "to_device")
# Operations after which the host must know something of the result before it can go on.
NUMBERS = {"_local_scalar_dense", "item", "is_nonzero", "equal", "allclose"}
SHAPES = {
    "nonzero", "nonzero_numpy", "argwhere", "masked_select", "bincount", "unique_dim", "unique_consecutive", "_unique",
    "_unique2",
}  # fmt: skip
INDEXING = {"index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index"}
FROM_DATA = {"tensor", "as_tensor", "new_tensor"}


class OtherDevice(RuntimeError):  # noqa: N818 - what it says, not that it is an error
    """Operands on different devices; CUDA would raise as well."""


class Ledger:
    """How often each line of ours (or of the library) made the host wait, or copied."""

    def __init__(self) -> None:
        self.counts: Counter[tuple[str, str]] = Counter()
        self.bytes: Counter[str] = Counter()
        self.operations = 0

    def note(self, kind: str, tensor: Any = None) -> None:
        if isinstance(tensor, torch.Tensor) and not tensor.numel():
            return  # nothing is copied, so nothing is waited for
        self.counts[kind, _site()] += 1
        if isinstance(tensor, torch.Tensor):
            self.bytes[kind] += tensor.numel() * tensor.element_size()

    @property
    def waits(self) -> int:
        return sum(n for (kind, _), n in self.counts.items() if kind in WAITING)

    def copies(self, kind: str, ours: bool = False) -> int:
        return sum(n for (k, site), n in self.counts.items() if k == kind and not (ours and "(" in site))

    def table(self) -> str:
        """Line by line, the most frequent first."""
        return "\n".join(f"{n:6} {kind:10} {site}" for (kind, site), n in self.counts.most_common())


def _site() -> str:
    """The innermost line of ours, else of the library's models."""
    frame: Any = sys._getframe(2)
    library = ""
    while frame is not None:
        name = frame.f_code.co_filename
        if name.startswith(PACKAGE) and frame.f_code.co_name != "send":
            return f"{name.removeprefix(PACKAGE)}:{frame.f_lineno} {frame.f_code.co_name}" + (
                f" ({library})" if library else ""
            )
        if not library and "/transformers/" in name:
            library = f"{name.rpartition('/transformers/')[2]}:{frame.f_lineno}"
        frame = frame.f_back
    return library or "test"


LEDGER = Ledger()  # the one in force; `pretending` exchanges it


class PretendTensor(torch.Tensor):
    """A tensor of a device that is not there. torch's own code takes it for a CPU tensor without storage."""

    inner: torch.Tensor
    place: torch.device
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @staticmethod
    def __new__(cls: Any, inner: torch.Tensor, place: torch.device) -> Any:
        assert not isinstance(inner, PretendTensor)
        made = torch.Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls, inner.size(), strides=inner.stride(), storage_offset=inner.storage_offset(), dtype=inner.dtype,
            device=CPU, requires_grad=False,
        )  # fmt: skip
        made.inner, made.place = inner, place
        return made

    def __repr__(self) -> str:  # type: ignore[override]
        return f"PretendTensor({self.inner}, {self.place})"

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return self.place

    @property
    def is_cuda(self) -> bool:  # type: ignore[override]
        return True

    @property
    def is_cpu(self) -> bool:  # type: ignore[override]
        return False

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = func.overloadpacket.__name__
        LEDGER.operations += 1
        if name == "copy_":
            return _copied(args, kwargs)
        place = _common_device(name, args, kwargs)
        if name in NUMBERS or name in SHAPES or _waits(name, func, args, kwargs):
            LEDGER.note("wait")
        bare = tree_map(_bare, args)
        if name == "histc" and not bare[0].is_floating_point():  # CUDA counts whole numbers, a CPU does not
            return _wrapped(func(bare[0].float(), *bare[1:], **kwargs).to(bare[0].dtype), place)
        out = func(*bare, **tree_map(_bare, kwargs))
        if func._schema.is_mutable and isinstance(out, torch.Tensor):
            written = next(a for a in (*args, *kwargs.values()) if isinstance(a, PretendTensor))
            if out is written.inner:
                return _same_shape(written)
        return tree_map(lambda t: _wrapped(t, place) if _plain(t) else t, out)


def _wrapped(inner: torch.Tensor, place: torch.device) -> PretendTensor:
    """An inference tensor where the inner one is: a view of a weight is none, even inside inference mode."""
    if torch.is_inference_mode_enabled() == inner.is_inference():
        return PretendTensor(inner, place)
    with torch.inference_mode(mode=inner.is_inference()):
        return PretendTensor(inner, place)


def _same_shape(t: PretendTensor) -> PretendTensor:
    """Operations in place give back what they were given, unless they changed its shape."""
    return t if t.shape == t.inner.shape else PretendTensor(t.inner, t.place)


def _plain(t: Any) -> bool:
    return isinstance(t, torch.Tensor) and not isinstance(t, PretendTensor)


def _bare(t: Any) -> Any:
    return t.inner if isinstance(t, PretendTensor) else t


def _copied(args: Any, kwargs: Any) -> Any:
    """`copy_`, the one operation that may have two devices."""
    to, source = args[0], args[1]
    blocking = not (kwargs.get("non_blocking") or (len(args) > 2 and args[2]))
    _note_copy(source.device, to.device, blocking, source)
    _bare(to).copy_(_bare(source))
    return to


def _note_copy(source: torch.device, to: torch.device, blocking: bool, tensor: torch.Tensor) -> None:
    if source == to:
        return
    if source != CPU and to != CPU:
        LEDGER.note("between", tensor)
    elif to == CPU:
        LEDGER.note("to_host", tensor)
    else:
        LEDGER.note("to_device" if blocking else "sent", tensor)


def _common_device(name: str, args: Any, kwargs: Any) -> torch.device:
    """The device of the operands. CUDA takes numbers (0-d) from the host, and copies an index from there."""
    tensors = [t for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
    places = {t.place for t in tensors if isinstance(t, PretendTensor)}
    strange = [t for t in tensors if not isinstance(t, PretendTensor) and t.dim() > 0]
    if name in INDEXING and isinstance(args[0], PretendTensor):
        for index in tree_leaves(args[1]):
            if _plain(index) and index.dim() > 0:
                LEDGER.note("to_device", index)
                strange = [t for t in strange if t is not index]
    if len(places) != 1 or strange:
        said = ", ".join(f"{t.device} {tuple(t.shape)}" for t in tensors)
        raise OtherDevice(f"{name}: operands on different devices ({said})")
    return next(iter(places))


def _waits(name: str, func: Any, args: Any, kwargs: Any) -> bool:
    """Operations whose result has a shape that only the device knows, in some of their uses."""
    if name in INDEXING:
        masks = [
            i for i in tree_leaves(args[1]) if isinstance(i, torch.Tensor) and i.dtype in (torch.bool, torch.uint8)
        ]
        # A mask that gets one value is filled in place (masked_fill): nobody needs to know how many.
        filled = name != "index" and len(args) > 2 and isinstance(args[2], torch.Tensor) and args[2].numel() == 1
        return bool(masks) and not filled
    if name == "repeat_interleave":
        counts = args[1] if len(args) > 1 and isinstance(args[1], torch.Tensor) else None
        tensor = counts is not None or func._overloadname == "Tensor"
        return tensor and kwargs.get("output_size") is None
    if name == "isin":  # few values are compared one by one, many are sorted
        return bool(args[1].numel() >= 10 * args[0].numel() ** 0.145)
    return False


# ---- before dispatch -----------------------------------------------------------------------------------------------


def placed(t: Any, device: torch.device) -> Any:
    """A tensor as one of that device; nothing is counted."""
    t = _bare(t)
    return t if device == CPU else _wrapped(t, device)


def _device(said: Any) -> torch.device:
    if isinstance(said, int):
        return torch.device("cuda", said)
    device = torch.device(said)
    return torch.device("cuda", 0) if device.type == "cuda" and device.index is None else device


def _to(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """`Tensor.to`: a copy only where the device changes."""
    source, target, rest = args[0], None, []
    more = dict(kwargs)
    blocking = not more.pop("non_blocking", False)
    for arg in (*args[1:], *([more.pop("other")] if "other" in more else [])):
        if isinstance(arg, torch.Tensor):
            target = arg.device
            rest.append(arg.dtype)
        elif isinstance(arg, (str, torch.device, int)) and not isinstance(arg, bool):
            target = arg
        else:
            rest.append(arg)
    if more.get("device") is not None:
        target = more.pop("device")
    more.pop("device", None)
    here = source.device
    goal = here if target is None else _device(target)
    if here == goal:  # a change of dtype at most
        if not rest and not more:
            return source
        return func(source, *rest, **more)
    _note_copy(here, goal, blocking, source)
    if torch.is_grad_enabled() and source.requires_grad:
        moved = _Moved.apply(source, goal)  # type: ignore[no-untyped-call]
        return func(moved, *rest, **more) if rest or more else moved
    inner = _bare(source)
    inner = inner.to(*rest, **more) if rest or more else inner
    return placed(inner.clone() if inner is _bare(source) else inner, goal)


class _Moved(torch.autograd.Function):
    """A change of device that gradients go back through."""

    @staticmethod
    def forward(ctx: Any, source: torch.Tensor, goal: torch.device) -> Any:  # type: ignore[override]
        ctx.home = source.device
        return placed(_bare(source).clone(), goal)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:  # type: ignore[override]
        return placed(_bare(grad), ctx.home), None


def _cpu(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return _to(func, (args[0], CPU), {})


def _cuda(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return _to(func, (args[0], _device(args[1] if len(args) > 1 else "cuda")), kwargs)


def _tolist(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if isinstance(args[0], PretendTensor):
        LEDGER.note("to_host", args[0])
    return _bare(args[0]).tolist()


def _numpy(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if isinstance(args[0], PretendTensor):
        raise TypeError(f"can't convert {args[0].device} device type tensor to numpy. Use Tensor.cpu() first.")
    return func(*args, **kwargs)


def _pin(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return args[0]  # page-locked memory needs a driver; here the copy that follows is what counts


BEFORE: dict[str, Callable[..., Any]] = {
    "to": _to, "cpu": _cpu, "cuda": _cuda, "tolist": _tolist, "numpy": _numpy, "__array__": _numpy, "pin_memory": _pin,
}  # fmt: skip


class _Front(TorchFunctionMode):
    """What happens before dispatch: where tensors are made, and how they leave."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if name in BEFORE and args and isinstance(args[0], torch.Tensor):
            return BEFORE[name](func, args, kwargs)
        said = kwargs.get("device")
        if said is None:
            return func(*args, **kwargs)
        device = _device(said)
        out = func(*args, **{**kwargs, "device": CPU})
        if name in FROM_DATA and device != CPU:
            LEDGER.note("to_device", out)
        return tree_map(lambda t: placed(t, device) if isinstance(t, torch.Tensor) else t, out)


@contextmanager
def pretending() -> Iterator[Ledger]:
    """While open, `cuda` devices exist and a fresh ledger counts."""
    global LEDGER  # dispatch has no other way to its ledger
    before, LEDGER = LEDGER, Ledger()
    answers: dict[str, Callable[..., Any]] = {
        "get_rng_state": lambda *a: torch.get_rng_state(),
        "set_rng_state": lambda *a: None,
        "get_device_capability": lambda *a: (8, 0),
    }
    kept = {name: getattr(torch.cuda, name) for name in answers}
    try:
        for name, answer in answers.items():
            setattr(torch.cuda, name, answer)
        with _Front():
            yield LEDGER
    finally:
        for name, real in kept.items():
            setattr(torch.cuda, name, real)
        LEDGER = before


def on_gpu(model: Any, devices: Mapping[str, str] | None = None) -> Any:
    """Moves the weights of a model, in place: all to cuda:0, or as `devices` says ("model.layers.1": "cuda:1").

    The longest prefix of a weight's name decides, as in a device_map.
    """
    devices = devices or {"": "cuda:0"}
    moved: dict[int, Any] = {}  # tied weights stay one tensor

    def device_of(name: str) -> torch.device:
        prefix = max((p for p in devices if not p or name == p or name.startswith(p + ".")), key=len)
        return torch.device(devices[prefix])

    for path, module in model.named_modules():
        for table in (module._parameters, module._buffers):
            for name, old in list(table.items()):
                if old is None:
                    continue
                if id(old) not in moved:
                    new: Any = PretendTensor(old.detach(), device_of(f"{path}.{name}".strip(".")))
                    if isinstance(old, torch.nn.Parameter):
                        new = torch.nn.Parameter(new, requires_grad=old.requires_grad)
                    moved[id(old)] = new
                table[name] = moved[id(old)]
    return model
