"""Honest but unusual kernels: right by construction, in ways that a judge could mistake for wrong. For calibrate.py.

Each is a few lines of torch for tensors on a CPU or a GPU, with the arguments of its operator without the output, which
it returns (`abi: python` in config.yaml). The first sentence of its docstring is its description, and the decorator
declares what a configuration would.
"""

from __future__ import annotations

import functools
import math
import threading
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from kernelproof import simfp8

# Products of float32 are products of float32 here, on every GPU.
torch.backends.cuda.matmul.allow_tf32 = False

FLOATS = ("float16", "bfloat16", "float32")
CODES = ("uint8", "float8_e4m3fn")
LOG2E = 1.4426950408889634
PARTS = 3  # of split keys, threads, streams

Tensor = torch.Tensor
Kernel = Callable[..., Tensor]


@dataclass(frozen=True)
class Honest:
    """What a kernel here declares: the precision that it is held to, the data types and devices that it takes."""

    operator: str
    name: str
    idea: str
    dtypes: tuple[str, ...]
    precision: dict[str, str]
    devices: tuple[str, ...] = ("cpu", "cuda")
    deterministic: bool = True


KERNELS: list[Honest] = []


def honest(
    operator: str, dtypes: tuple[str, ...] = FLOATS, p: str = "float32", output: str = "input", **more: Any
) -> Any:
    """Enter a function in KERNELS."""

    def enter(function: Kernel) -> Kernel:
        idea = (function.__doc__ or "").partition(".")[0]
        KERNELS.append(Honest(operator, function.__name__, idea, dtypes, {"output": output, "p": p}, **more))
        return function

    return enter


# --- attention: q [B, H, Sq, D], k and v [B, Hkv, Sk, D] → o [B, H, Sq, D] --------------------------------------------


def _wide(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """In float32, a key head for each query head."""
    group = q.shape[1] // k.shape[1]
    return q.float(), k.float().repeat_interleave(group, 1), v.float().repeat_interleave(group, 1)


def _scores(q: Tensor, k: Tensor, scale: float, causal: bool, keys: Tensor | None = None) -> Tensor:
    """Scaled scores [B, H, Sq, n] of some keys (their places; None: all), −∞ where one is hidden."""
    seq, seq_k = q.shape[2], k.shape[2]
    places = torch.arange(seq_k, device=q.device) if keys is None else keys
    scores = (q @ (k if keys is None else k[:, :, keys]).mT) * scale
    if causal:
        last = torch.arange(seq, device=q.device)[:, None] + (seq_k - seq)
        scores.masked_fill_(places > last, -math.inf)
    return scores


def _softmax(scores: Tensor) -> Tensor:
    """Rows that see no key weigh nothing."""
    return torch.softmax(scores, -1).nan_to_num_(0.0)


@dataclass
class Running:
    """An online softmax under way: the rows' maximum and sum [B, H, Sq, 1], and the output not yet divided."""

    top: Tensor
    total: Tensor
    out: Tensor

    @classmethod
    def begun(cls, q: Tensor) -> Running:
        """Before the first key."""
        row = q.new_full((*q.shape[:3], 1), -math.inf)
        return cls(row, torch.zeros_like(row), torch.zeros_like(q))

    def take(self, scores: Tensor, v: Tensor, weigh: Callable[[Tensor], Tensor], kind: torch.dtype) -> None:
        """Fold in some keys; `weigh` is the exponential, and weights are rounded to `kind` for the product with V."""
        top = torch.maximum(self.top, scores.amax(-1, keepdim=True))
        finite = torch.where(top == -math.inf, 0.0, top)  # −∞ − −∞ where a row has seen nothing yet
        old, weights = weigh(self.top - finite), weigh(scores - finite)
        self.total = self.total * old + weights.sum(-1, keepdim=True)
        self.out = self.out * old + weights.to(kind).float() @ v
        self.top = top

    def joined(self, other: Running) -> Running:
        """The combine step of two that saw different keys."""
        top = torch.maximum(self.top, other.top)
        finite = torch.where(top == -math.inf, 0.0, top)
        mine, theirs = (self.top - finite).exp(), (other.top - finite).exp()
        return Running(top, self.total * mine + other.total * theirs, self.out * mine + other.out * theirs)

    def done(self) -> Tensor:
        """Divided; 0 where no key was seen."""
        return torch.where(self.total == 0, 0.0, self.out / self.total)


def _online(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float,
    causal: bool,
    tiles: Iterable[Tensor],
    weigh: Callable[[Tensor], Tensor] = torch.exp,
    kind: torch.dtype | None = None,
) -> Tensor:
    """Online softmax over tiles of keys (their places), P rounded to `kind` (None: the inputs')."""
    wide = _wide(q, k, v)
    running = Running.begun(wide[0])
    for keys in tiles:
        running.take(_scores(*wide[:2], scale, causal, keys), wide[2][:, :, keys], weigh, kind or q.dtype)
    return running.done().to(q.dtype)


def _tiles(k: Tensor, size: int) -> Sequence[Tensor]:
    return torch.arange(k.shape[2], device=k.device).split(size)


@honest("attention")
def float32_throughout(q: Tensor, k: Tensor, v: Tensor, scale: float, causal: bool) -> Tensor:
    """float32 throughout, without TF32, one rounding at the end."""
    wide = _wide(q, k, v)
    return (_softmax(_scores(*wide[:2], scale, causal)) @ wide[2]).to(q.dtype)


@honest("attention")
def float64_throughout(q: Tensor, k: Tensor, v: Tensor, scale: float, causal: bool) -> Tensor:
    """float64 throughout, rounded once: more exact than it has to be."""
    q64, k64, v64 = (t.double() for t in _wide(q, k, v))
    return (_softmax(_scores(q64, k64, scale, causal)) @ v64).to(q.dtype)


@honest("attention", p="input")
def weights_rounded(q: Tensor, k: Tensor, v: Tensor, scale: float, causal: bool) -> Tensor:
    """P is normalised, then rounded to the input's type."""
    wide = _wide(q, k, v)
    return (_softmax(_scores(*wide[:2], scale, causal)).to(q.dtype).float() @ wide[2]).to(q.dtype)


@honest("attention", p="input")
def tiles_of_16(q: Tensor, k: Tensor, v: Tensor, scale: float, causal: bool) -> Tensor:
    """Online softmax over tiles of 16 keys, P rounded to the input's type."""
    return _online(q, k, v, scale, causal, _tiles(k, 16))


@honest("attention", p="input")
def tiles_of_80(q: Tensor, k: Tensor, v: Tensor, scale: float, causal: bool) -> Tensor:
    """Online softmax over tiles of 80 keys, P rounded to the input's type."""
    return _online(q, k, v, scale, causal, _tiles(k, 80))


@honest("attention")
def last_tile_first(q: Tensor, k: Tensor, v: Tensor, scale: float, causal: bool) -> Tensor:
    """Online softmax from the last tile of 48 keys to the first, P in float32."""
    return _online(q, k, v, scale, causal, _tiles(k, 48)[::-1], kind=torch.float32)


@honest("attention", p="input")
def base_two(q: Tensor, k: Tensor, v: Tensor, scale: float, causal: bool) -> Tensor:
    """Exponentials to base two, log₂e in the scale beforehand."""
    return _online(q, k, v, scale * LOG2E, causal, _tiles(k, 64), torch.exp2)


@honest("attention", p="input")
def late_rescaling(q: Tensor, k: Tensor, v: Tensor, scale: float, causal: bool) -> Tensor:
    """The running maximum follows only when it is exceeded by more than 8, so that weights reach e⁸."""
    q32, k32, v32 = _wide(q, k, v)
    running = Running.begun(q32)
    for keys in _tiles(k, 64):
        scores = _scores(q32, k32, scale, causal, keys)
        top = scores.amax(-1, keepdim=True)
        top = torch.where(top > running.top + 8, top, running.top)  # also from −∞
        finite = torch.where(top == -math.inf, 0.0, top)
        old, weights = (running.top - finite).exp(), (scores - finite).exp()
        out = running.out * old + weights.to(q.dtype).float() @ v32[:, :, keys]
        running = Running(top, running.total * old + weights.sum(-1, keepdim=True), out)
    return running.done().to(q.dtype)


@honest("attention")
def two_passes(q: Tensor, k: Tensor, v: Tensor, scale: float, causal: bool) -> Tensor:
    """The maximum and the sum in one pass over the keys, the output in another; scores are computed twice."""
    q32, k32, v32 = _wide(q, k, v)
    parts = [torch.logsumexp(_scores(q32, k32, scale, causal, keys), -1, keepdim=True) for keys in _tiles(k, 100)]
    whole = torch.logsumexp(torch.cat(parts, -1), -1, keepdim=True)
    whole = torch.where(whole == -math.inf, 0.0, whole)
    out = torch.zeros_like(q32)
    for keys in _tiles(k, 100):
        out += (_scores(q32, k32, scale, causal, keys) - whole).exp() @ v32[:, :, keys]
    return out.to(q.dtype)


def _part(q: Tensor, k: Tensor, v: Tensor, scale: float, causal: bool, keys: Tensor, kind: torch.dtype) -> Running:
    running = Running.begun(q)
    running.take(_scores(q, k, scale, causal, keys), v[:, :, keys], torch.exp, kind)
    return running


@honest("attention", p="input")
def split_keys(q: Tensor, k: Tensor, v: Tensor, scale: float, causal: bool) -> Tensor:
    """The keys split in three, each part by itself, then combined."""
    wide = _wide(q, k, v)
    parts = torch.arange(k.shape[2], device=k.device).tensor_split(PARTS)
    found = [_part(*wide, scale, causal, keys, q.dtype) for keys in parts if len(keys)]
    running = found[0]
    for other in found[1:]:
        running = running.joined(other)
    return running.done().to(q.dtype)


@honest("attention", p="input", deterministic=False)
def random_order(q: Tensor, k: Tensor, v: Tensor, scale: float, causal: bool) -> Tensor:
    """Keys in another random order in each call: right each time, never the same bits."""
    order = torch.randperm(k.shape[2], generator=_chance()).to(k.device)
    return _online(q, k, v, scale, causal, order.split(32))


def _chance() -> torch.Generator:
    """Seeded by the system."""
    generator = torch.Generator()
    generator.seed()
    return generator


@honest("attention", p="input")
def joined_workers(q: Tensor, k: Tensor, v: Tensor, scale: float, causal: bool) -> Tensor:
    """Query rows split over three threads (on a GPU: streams), all joined before it returns."""
    wide = _wide(q, k, v)
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    rows = torch.arange(q.shape[2], device=q.device).tensor_split(PARTS)

    def work(places: Tensor) -> None:
        scores = _scores(*wide[:2], scale, causal)[:, :, places]
        out[:, :, places] = (_softmax(scores).to(q.dtype).float() @ wide[2]).to(q.dtype)

    (_in_streams if q.is_cuda else _in_threads)(work, [places for places in rows if len(places)])
    return out


def _in_threads(work: Callable[[Tensor], None], shares: list[Tensor]) -> None:
    threads = [threading.Thread(target=work, args=(share,)) for share in shares]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _in_streams(work: Callable[[Tensor], None], shares: list[Tensor]) -> None:
    current = torch.cuda.current_stream()
    for share in shares:
        stream = torch.cuda.Stream()
        stream.wait_stream(current)
        with torch.cuda.stream(stream):
            work(share)
        current.wait_stream(stream)


_workspaces: dict[tuple[Any, ...], Tensor] = {}


def _workspace(shape: tuple[int, ...], device: torch.device) -> Tensor:
    """float32 memory that outlives the call and holds what the last one left there."""
    key = (shape, device)
    if key not in _workspaces:
        _workspaces.clear()
        _workspaces[key] = torch.empty(shape, device=device)
    return _workspaces[key]


@honest("attention")
def kept_workspace(q: Tensor, k: Tensor, v: Tensor, scale: float, causal: bool) -> Tensor:
    """Scores in a workspace that is kept between calls and initialised in each."""
    wide = _wide(q, k, v)
    scores = _workspace((*q.shape[:3], k.shape[2]), q.device).zero_()
    scores += _scores(*wide[:2], scale, causal)
    return (_softmax(scores) @ wide[2]).to(q.dtype)


@honest("attention", p="input")
def in_place(q: Tensor, k: Tensor, v: Tensor, scale: float, causal: bool) -> Tensor:
    """Every step in the memory of the scores, the output computed elsewhere and then copied."""
    wide = _wide(q, k, v)
    scores = _scores(*wide[:2], scale, causal)
    scores.sub_(scores.amax(-1, keepdim=True).nan_to_num_(0.0, neginf=0.0)).exp_()
    total = scores.sum(-1, keepdim=True)
    elsewhere = scores.to(q.dtype).float() @ wide[2]
    elsewhere.div_(total.masked_fill_(total == 0, 1.0))
    return torch.full_like(q, math.nan).copy_(elsewhere)


@honest("attention")
def gives_a_view(q: Tensor, k: Tensor, v: Tensor, scale: float, causal: bool) -> Tensor:
    """The output is a view of wider memory: every other row of it, heads and rows exchanged."""
    wide = _wide(q, k, v)
    batch, heads, seq, features = q.shape
    memory = torch.full((batch, 2 * seq, heads, features), math.nan, dtype=q.dtype, device=q.device)
    out = memory[:, ::2].transpose(1, 2)
    out.copy_(_softmax(_scores(*wide[:2], scale, causal)) @ wide[2])
    return out


@honest("attention", p="input", devices=("cuda",))
def graph_captured(q: Tensor, k: Tensor, v: Tensor, scale: float, causal: bool) -> Tensor:
    """Captured in a CUDA graph in each call, and replayed once."""
    split_keys(q, k, v, scale, causal)  # what is made at the first call cannot be captured
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = split_keys(q, k, v, scale, causal)
    graph.replay()
    torch.cuda.synchronize()
    return out.clone()


@functools.cache
def _compiled(function: Kernel) -> Kernel:
    """Compiled once for the first shape, and once for all others."""
    compiled: Kernel = torch.compile(function)
    return compiled


@honest("attention", p="input")
def flex(q: Tensor, k: Tensor, v: Tensor, scale: float, causal: bool) -> Tensor:
    """torch's FlexAttention: compiled on a GPU, its composition of matrix products on a CPU."""
    from torch.nn.attention import flex_attention as module

    attend = _compiled(module.flex_attention) if q.is_cuda else module.flex_attention
    distance = k.shape[2] - q.shape[2]

    def hide(score: Tensor, batch: Tensor, head: Tensor, row: Tensor, key: Tensor) -> Tensor:
        return torch.where(key <= row + distance, score, -math.inf)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the advice to compile it
        return attend(q, k, v, score_mod=hide if causal else None, scale=scale, enable_gqa=q.shape[1] != k.shape[1])


# --- RMSNorm: x [rows, cols], weight [cols] → y [rows, cols] ----------------------------------------------------------


def _normed(x: Tensor, weight: Tensor, square: Tensor, eps: float) -> Tensor:
    """From the mean square of each row [rows, 1], in whatever type that has."""
    return (x.to(square.dtype) * (square + eps).rsqrt() * weight.to(square.dtype)).to(x.dtype)


@honest("rmsnorm")
def norm_in_two_passes(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """The sum of squares in one pass in float32, the scaling in another."""
    return _normed(x, weight, x.float().square().mean(-1, keepdim=True), eps)


@honest("rmsnorm")
def norm_summed_in_float64(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """One pass with a float64 sum, the rest in float32."""
    return _normed(x, weight, x.double().square().mean(-1, keepdim=True).float(), eps)


@honest("rmsnorm")
def norm_in_blocks(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """The sum of squares in blocks of 96 columns, the blocks added one after another."""
    total = torch.zeros(x.shape[0], 1, device=x.device)
    for block in x.float().split(96, -1):
        total += block.square().sum(-1, keepdim=True)
    return _normed(x, weight, total / x.shape[-1], eps)


@honest("rmsnorm", deterministic=False)
def norm_in_random_order(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Columns summed in another random order in each call."""
    order = torch.randperm(x.shape[-1], generator=_chance()).to(x.device)
    total = torch.zeros(x.shape[0], 1, device=x.device)
    for block in x.float()[:, order].split(33, -1):
        total += block.square().sum(-1, keepdim=True)
    return _normed(x, weight, total / x.shape[-1], eps)


@honest("rmsnorm")
def norm_of_scaled_rows(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Each row is divided by a power of two near its largest value before it is squared, against overflow."""
    wide = x.float()
    exponent = torch.frexp(wide.abs().amax(-1, keepdim=True)).exponent.clamp_min(-16)  # eps rules far below that
    small = torch.ldexp(wide, -exponent)
    square = small.square().mean(-1, keepdim=True) + torch.ldexp(torch.full_like(wide[:, :1], eps), -2 * exponent)
    return (small * square.rsqrt() * weight.float()).to(x.dtype)


@honest("rmsnorm", p="input")
def norm_rounded_before_the_weight(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """The normalised row is rounded to the input's type before the weight is applied."""
    ones = torch.ones_like(weight)
    return (_normed(x, ones, x.float().square().mean(-1, keepdim=True), eps).float() * weight.float()).to(x.dtype)


# --- scores: q, k [B, H, S, D], scales [B, H] → s [B, H, Sq, Sk] float32 ----------------------------------------------


def _worth(q_scale: Tensor, k_scale: Tensor, factor: float) -> Tensor:
    step = simfp8.LARGEST / simfp8.LEVELS
    return (q_scale * k_scale * (step * step * factor))[..., None, None]


@honest("qkt", dtypes=("uint8", "float16", "bfloat16"), output="float32")
def scores_in_float64(q: Tensor, k: Tensor, q_scale: Tensor, k_scale: Tensor, factor: float) -> Tensor:
    """Products and scales in float64, rounded once."""
    if q.dtype != torch.uint8:
        return (q.double() @ k.double().mT * factor).float()
    left, right = (codes.double() - simfp8.ZERO_POINT for codes in (q, k))
    return ((left @ right.mT) * _worth(q_scale.double(), k_scale.double(), factor)).float()


@honest("qkt", dtypes=("uint8", "float16", "bfloat16"), output="float32")
def scores_by_features(q: Tensor, k: Tensor, q_scale: Tensor, k_scale: Tensor, factor: float) -> Tensor:
    """Products of 16 features at a time, the last ones first, added in float32."""
    coded = q.dtype == torch.uint8
    left, right = (t.float() - simfp8.ZERO_POINT if coded else t.float() for t in (q, k))
    out = torch.zeros(*q.shape[:3], k.shape[2], device=q.device)
    for a, b in list(zip(left.split(16, -1), right.split(16, -1), strict=True))[::-1]:
        out += a @ b.mT
    return out * (_worth(q_scale, k_scale, factor) if coded else factor)


# --- quantised attention: codes like attention's tensors, scales [B, H] and [B, Hkv] → o float16 ----------------------


def _steps(codes: Tensor) -> Tensor:
    """Codes as float32 numbers, still to be multiplied by `_unit` times their scale."""
    return codes.float() - simfp8.ZERO_POINT if codes.dtype == torch.uint8 else codes.float()


def _unit(codes: Tensor) -> float:
    return simfp8.LARGEST / simfp8.LEVELS if codes.dtype == torch.uint8 else 1.0


def _decoded(codes: Tensor, scale: Tensor) -> Tensor:
    return _steps(codes) * (scale * _unit(codes))[..., None, None]


@honest("quantised_attention", dtypes=CODES, output="float16", p="float16")
def decoded_split_keys(
    q: Tensor, k: Tensor, v: Tensor, q_scale: Tensor, k_scale: Tensor, v_scale: Tensor, scale: float, causal: bool
) -> Tensor:
    """Codes decoded to float32, then tiles of 80 keys with P in float16."""
    wide = _decoded(q, q_scale), _decoded(k, k_scale), _decoded(v, v_scale)
    return _online(*wide, scale, causal, _tiles(k, 80), kind=torch.float16).half()


@honest("quantised_attention", dtypes=CODES, output="float16")
def scales_at_the_end(
    q: Tensor, k: Tensor, v: Tensor, q_scale: Tensor, k_scale: Tensor, v_scale: Tensor, scale: float, causal: bool
) -> Tensor:
    """Products of codes; the scales are applied to the scores and to the output."""
    q32, k32, v32 = _wide(_steps(q), _steps(k), _steps(v))
    group = q.shape[1] // k.shape[1]
    k_worth, v_worth = ((s * _unit(k)).repeat_interleave(group, 1)[..., None, None] for s in (k_scale, v_scale))
    scores = _scores(q32, k32, 1.0, causal) * ((q_scale * _unit(q) * scale)[..., None, None] * k_worth)
    return (_softmax(scores) @ v32 * v_worth).half()
