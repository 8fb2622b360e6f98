"""Triton kernels of what is done most often on a GPU: draws, Beta densities, attention, scores.

Each does in one launch what a formula of tensor operations does in dozens, for any shape, without
being compiled anew for each. They compute what the plain forms beside their callers compute; tests
compare the two. Nothing here is imported before a GPU asks for it.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

_GOLDEN = tl.constexpr(0x9E3779B97F4A7C15 - 2**64)
_MIX_1 = tl.constexpr(0xBF58476D1CE4E5B9 - 2**64)
_MIX_2 = tl.constexpr(0x94D049BB133111EB - 2**64)
_STEP = tl.constexpr(0xD1B54A32D192ED03 - 2**64)
_CELL = tl.constexpr(2.0**-23)
_ROUNDS = tl.constexpr(6)
_HALF_LOG_2_PI = tl.constexpr(0.9189385332046727)

_BLOCK = 256
_ROWS = 64  # of entities that one program scores at a time; of more, registers spill
_PROGRAMS = 528  # that score rows side by side: four for each multiprocessor of an H100


@triton.jit
def _mix(x):
    x = (x ^ ((x >> 30) & 0x3FFFFFFFF)) * _MIX_1
    x = (x ^ ((x >> 27) & 0x1FFFFFFFFF)) * _MIX_2
    return x ^ ((x >> 31) & 0x1FFFFFFFF)


@triton.jit
def _unit(cell):
    return (cell.to(tl.float32) + 0.5) * _CELL


@triton.jit
def _normal(word):
    radius = tl.sqrt(-2.0 * tl.log(_unit((word >> 41) & 0x7FFFFF)))
    return radius * tl.cos(6.283185307179586 * _unit((word >> 18) & 0x7FFFFF))


@triton.jit
def _gamma(counter, d):
    """Marsaglia and Tsang's proposals, the first that is accepted; d where none is."""
    slope = tl.rsqrt(9.0 * d)
    found = d
    waiting = d > 0.0
    for r in range(_ROUNDS):
        word = _mix((counter + r) * _GOLDEN)
        x = _normal(word)
        root = 1.0 + slope * x
        cube = root * root * root
        bound = 0.5 * x * x + d * (1.0 - cube + tl.log(tl.maximum(cube, 1e-30)))
        level = tl.log(((word & 0x3FFFF).to(tl.float32) + 0.5) * 3.814697265625e-06)
        taken = waiting & (level < bound)
        found = tl.where(taken, d * cube, found)
        waiting = waiting & (level >= bound)
    return found


@triton.jit
def _bases_kernel(key, step, out, L, offset, BLOCK: tl.constexpr):
    lane = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    here = lane < L
    word = _mix(tl.load(key + lane, here, 0) + tl.load(step + lane, here, 0) * _STEP)
    tl.store(out + lane, _mix(word + offset), mask=here)


@triton.jit
def _uniform_kernel(base, out, n, first, NORMAL: tl.constexpr, BLOCK: tl.constexpr):
    lane = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    word = _mix((tl.load(base + lane) + first + at) * _GOLDEN)
    number = _normal(word) if NORMAL else _unit((word >> 41) & 0x7FFFFF)
    tl.store(out + lane * n + at, number, mask=at < n)


@triton.jit
def _beta_kernel(base, alpha, beta, out, n, first, BLOCK: tl.constexpr):
    lane = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    here = at < n
    counter = tl.load(base + lane) + first + at * _ROUNDS
    one = _gamma(counter, tl.load(alpha + lane * n + at, here, 1.0) - 1.0 / 3.0)
    other = _gamma(counter + n * _ROUNDS, tl.load(beta + lane * n + at, here, 1.0) - 1.0 / 3.0)
    tl.store(out + lane * n + at, one / (one + other), mask=here)


@triton.jit
def _series(table, which, w):
    """The polynomial of row `which` of the table of 12 coefficients, at w (Horner)."""
    total = tl.zeros_like(w) + tl.load(table + which * 12 + 11)
    for k in range(11):
        total = total * w + tl.load(table + which * 12 + 10 - k)
    return total


@triton.jit
def _slope(table, w):
    """digamma(z) - log(z) for w = 1 / z."""
    return (_series(table, 1, w) * w - 0.5) * w


@triton.jit
def _density_kernel(
    alpha, beta, x, log_prob, entropy, table, rows, n, BLOCK: tl.constexpr, R: tl.constexpr
):
    row = (tl.program_id(0).to(tl.int64) * R + tl.arange(0, R))[:, None]
    at = tl.arange(0, BLOCK)[None, :]
    here = (row < rows) & (at < n)
    a = tl.load(alpha + row * n + at, here, 1.0)
    b = tl.load(beta + row * n + at, here, 1.0)
    p = tl.load(x + row * n + at, here, 0.5)
    total = a + b
    wa, wb, wt = 1.0 / a, 1.0 / b, 1.0 / total
    d = _series(table, 0, wa) * wa + _series(table, 0, wb) * wb - _series(table, 0, wt) * wt
    log_x = tl.log(p * total * wa)
    log_y = tl.log((1.0 - p) * total * wb)
    scale = 0.5 * tl.log(a * b * wt)
    density = (a * log_x + b * log_y) + (scale - tl.log(p * (1.0 - p)) - _HALF_LOG_2_PI) - d
    bits = (
        (scale - tl.log(total) + _HALF_LOG_2_PI)
        + d
        + (
            (total - 2.0) * _slope(table, wt)
            - (a - 1.0) * _slope(table, wa)
            - (b - 1.0) * _slope(table, wb)
        )
    )
    out = tl.program_id(0).to(tl.int64) * R + tl.arange(0, R)
    tl.store(log_prob + out, tl.sum(tl.where(here, density, 0.0), axis=1), mask=out < rows)
    tl.store(entropy + out, tl.sum(tl.where(here, bits, 0.0), axis=1), mask=out < rows)


@triton.jit
def _trigamma(table, w):
    return ((_series(table, 2, w) * w + 0.5) * w + 1.0) * w


@triton.jit
def _score_kernel(
    alpha, beta, x, to_log_prob, to_entropy, to_alpha, to_beta, table, rows, n,
    BLOCK: tl.constexpr, R: tl.constexpr,
):  # fmt: skip
    row = (tl.program_id(0).to(tl.int64) * R + tl.arange(0, R))[:, None]
    at = tl.arange(0, BLOCK)[None, :]
    here = (row < rows) & (at < n)
    a = tl.load(alpha + row * n + at, here, 1.0)
    b = tl.load(beta + row * n + at, here, 1.0)
    p = tl.load(x + row * n + at, here, 0.5)
    g_log_prob = tl.load(to_log_prob + row, row < rows, 0.0)
    g_entropy = tl.load(to_entropy + row, row < rows, 0.0)
    total = a + b
    wa, wb, wt = 1.0 / a, 1.0 / b, 1.0 / total
    of_total = _slope(table, wt)
    score_a = tl.log(p * total * wa) - _slope(table, wa) + of_total
    score_b = tl.log((1.0 - p) * total * wb) - _slope(table, wb) + of_total
    both = (total - 2.0) * _trigamma(table, wt)
    to_a = g_log_prob * score_a + g_entropy * (both - (a - 1.0) * _trigamma(table, wa))
    to_b = g_log_prob * score_b + g_entropy * (both - (b - 1.0) * _trigamma(table, wb))
    tl.store(to_alpha + row * n + at, to_a, mask=here)
    tl.store(to_beta + row * n + at, to_b, mask=here)


@triton.jit
def _weights(q, k, A, scale, BLOCK: tl.constexpr):
    """What each agent takes of the others: the softmax of its products, none of itself."""
    me = tl.arange(0, BLOCK)[:, None]
    you = tl.arange(0, BLOCK)[None, :]
    product = tl.dot(q, tl.trans(k)) * scale
    product = tl.where((you < A) & (me != you), product, float("-inf"))
    power = tl.exp(product - tl.max(product, axis=1)[:, None])
    return power / tl.sum(power, axis=1)[:, None]


@triton.jit
def _attend_kernel(qkv, out, A, scale, H: tl.constexpr, D: tl.constexpr, BLOCK: tl.constexpr):
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    agent = tl.arange(0, BLOCK)[:, None]
    at = agent * (3 * H * D) + head * D + tl.arange(0, D)[None, :]
    start = qkv + row * A * (3 * H * D)
    here = agent < A
    q = tl.load(start + at, here, 0.0)
    k = tl.load(start + at + H * D, here, 0.0)
    v = tl.load(start + at + 2 * H * D, here, 0.0)
    gathered = tl.dot(_weights(q, k, A, scale, BLOCK).to(v.dtype), v)
    to = out + row * A * (H * D) + agent * (H * D) + head * D + tl.arange(0, D)[None, :]
    tl.store(to, gathered.to(v.dtype), mask=here)


@triton.jit
def _attend_back_kernel(
    qkv, grad, to_qkv, A, scale, H: tl.constexpr, D: tl.constexpr, BLOCK: tl.constexpr
):
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    agent = tl.arange(0, BLOCK)[:, None]
    at = agent * (3 * H * D) + head * D + tl.arange(0, D)[None, :]
    start = qkv + row * A * (3 * H * D)
    here = agent < A
    q = tl.load(start + at, here, 0.0)
    k = tl.load(start + at + H * D, here, 0.0)
    v = tl.load(start + at + 2 * H * D, here, 0.0)
    of = grad + row * A * (H * D) + agent * (H * D) + head * D + tl.arange(0, D)[None, :]
    g = tl.load(of, here, 0.0)
    weight = _weights(q, k, A, scale, BLOCK)
    to = to_qkv + row * A * (3 * H * D) + at
    tl.store(to + 2 * H * D, tl.dot(tl.trans(weight.to(g.dtype)), g).to(g.dtype), mask=here)
    slope = tl.dot(g, tl.trans(v))
    slope = weight * (slope - tl.sum(slope * weight, axis=1)[:, None]) * scale
    slope = tl.where(agent < A, slope, 0.0).to(g.dtype)
    tl.store(to, tl.dot(slope, k).to(g.dtype), mask=here)
    tl.store(to + H * D, tl.dot(tl.trans(slope), q).to(g.dtype), mask=here)


@triton.jit
def _layers(
    weights, F: tl.constexpr, W: tl.constexpr, K: tl.constexpr, FB: tl.constexpr, KB: tl.constexpr
):
    """One member's layers out of its flat weights, in bf16; narrow sides are padded with 0."""
    wide, feature, number = tl.arange(0, W), tl.arange(0, FB)[None, :], tl.arange(0, KB)
    at = weights
    first = tl.load(at + wide[:, None] * F + feature, feature < F, 0.0)  # [W, FB]
    at += W * F
    first_bias = tl.load(at + wide)
    at += W
    second = tl.load(at + wide[:, None] * W + wide[None, :])  # [W, W]
    at += W * W
    second_bias = tl.load(at + wide)
    at += W
    head = tl.load(at + number[:, None] * W + wide[None, :], (number < K)[:, None], 0.0)  # [KB, W]
    head_bias = tl.load(at + K * W + number, number < K, 0.0)
    half = tl.bfloat16
    return first.to(half), first_bias, second.to(half), second_bias, head.to(half), head_bias


@triton.jit
def _hidden(x, weight, bias):
    return tl.maximum(tl.dot(x, tl.trans(weight)) + bias[None, :], 0.0).to(tl.bfloat16)


@triton.jit
def _score_rows_kernel(
    rows, weights, out, M, n,
    F: tl.constexpr, W: tl.constexpr, K: tl.constexpr, FB: tl.constexpr, KB: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    member = tl.program_id(1).to(tl.int64)
    w_1, b_1, w_2, b_2, w_3, b_3 = _layers(weights + member * n, F, W, K, FB, KB)
    feature, number = tl.arange(0, FB)[None, :], tl.arange(0, KB)[None, :]
    for block in range(tl.program_id(0), tl.cdiv(M, BLOCK), tl.num_programs(0)):
        row = (block * BLOCK + tl.arange(0, BLOCK))[:, None]
        here = (row < M) & (feature < F)
        x = tl.load(rows + member * M * F + row * F + feature, here, 0.0).to(tl.bfloat16)
        score = tl.dot(_hidden(_hidden(x, w_1, b_1), w_2, b_2), tl.trans(w_3)) + b_3[None, :]
        to = out + member * M * K + row * K + number
        tl.store(to, score.to(tl.bfloat16), mask=(row < M) & (number < K))


@triton.jit
def _score_rows_back_kernel(
    rows, weights, grad, parts, M, n,
    F: tl.constexpr, W: tl.constexpr, K: tl.constexpr, FB: tl.constexpr, KB: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Adds up, over every S-th block of rows of a member, what reaches its weights."""
    part, S, member = tl.program_id(0), tl.num_programs(0), tl.program_id(1).to(tl.int64)
    w_1, b_1, w_2, b_2, w_3, _ = _layers(weights + member * n, F, W, K, FB, KB)
    feature, number = tl.arange(0, FB)[None, :], tl.arange(0, KB)[None, :]
    to_1, to_2 = tl.zeros([W, FB], tl.float32), tl.zeros([W, W], tl.float32)
    to_3 = tl.zeros([W, KB], tl.float32)  # the other way round: the wider side first
    to_b_1, to_b_2 = tl.zeros([W], tl.float32), tl.zeros([W], tl.float32)
    to_b_3 = tl.zeros([KB], tl.float32)
    for block in range(part, tl.cdiv(M, BLOCK), S):
        row = (block * BLOCK + tl.arange(0, BLOCK))[:, None]
        here = (row < M) & (feature < F)
        x = tl.load(rows + member * M * F + row * F + feature, here, 0.0).to(tl.bfloat16)
        of = grad + member * M * K + row * K + number
        g = tl.load(of, (row < M) & (number < K), 0.0).to(tl.bfloat16)
        h_1 = _hidden(x, w_1, b_1)
        h_2 = _hidden(h_1, w_2, b_2)
        to_3 += tl.dot(tl.trans(h_2), g)
        to_b_3 += tl.sum(g.to(tl.float32), axis=0)
        g_2 = tl.where(h_2 > 0.0, tl.dot(g, w_3), 0.0)
        to_b_2 += tl.sum(g_2, axis=0)
        to_2 += tl.dot(tl.trans(g_2.to(tl.bfloat16)), h_1)
        g_1 = tl.where(h_1 > 0.0, tl.dot(g_2.to(tl.bfloat16), w_2), 0.0)
        to_b_1 += tl.sum(g_1, axis=0)
        to_1 += tl.dot(tl.trans(g_1.to(tl.bfloat16)), x)
    wide, k = tl.arange(0, W), tl.arange(0, KB)
    at = parts + (member * S + part) * n
    tl.store(at + wide[:, None] * F + feature, to_1, mask=feature < F)
    at += W * F
    tl.store(at + wide, to_b_1)
    at += W
    tl.store(at + wide[:, None] * W + wide[None, :], to_2)
    at += W * W
    tl.store(at + wide, to_b_2)
    at += W
    tl.store(at + number * W + wide[:, None], to_3, mask=number < K)
    tl.store(at + K * W + k, to_b_3, mask=k < K)


def lane_bases(key: Tensor, step: Tensor, offset: int) -> Tensor:
    """Counters `[L]` at which the draws of one purpose begin."""
    out = torch.empty_like(key)
    _bases_kernel[(triton.cdiv(len(key), _BLOCK),)](key, step, out, len(key), offset, BLOCK=_BLOCK)
    return out


def draw(base: Tensor, n: int, first: int, normal: bool) -> Tensor:
    """`[L, n]` numbers whose counters begin `first` after `base [L]`."""
    out = torch.empty(len(base), n, dtype=torch.float32, device=base.device)
    grid = (len(base), triton.cdiv(n, _BLOCK))
    _uniform_kernel[grid](base, out, n, first, NORMAL=normal, BLOCK=_BLOCK)
    return out


def draw_beta(base: Tensor, alpha: Tensor, beta: Tensor, first: int) -> Tensor:
    """Beta numbers `[L, n]` for contiguous parameters `[L, n]`."""
    L, n = alpha.shape
    out = torch.empty_like(alpha)
    _beta_kernel[(L, triton.cdiv(n, _BLOCK))](base, alpha, beta, out, n, first, BLOCK=_BLOCK)
    return out


def _tile(n: int) -> tuple[int, int]:
    """Numbers and rows that one program takes."""
    block = max(int(triton.next_power_of_2(n)), 2)
    return block, max(1, 512 // block)


def density(alpha: Tensor, beta: Tensor, x: Tensor, table: Tensor) -> tuple[Tensor, Tensor]:
    """Log-density and entropy `[rows]`, summed over `[rows, n]`."""
    rows, n = x.shape
    log_prob, entropy = x.new_empty(rows), x.new_empty(rows)
    block, R = _tile(n)
    _density_kernel[(triton.cdiv(rows, R),)](
        alpha, beta, x, log_prob, entropy, table, rows, n, BLOCK=block, R=R
    )
    return log_prob, entropy


def score(
    alpha: Tensor, beta: Tensor, x: Tensor, to_log_prob: Tensor, to_entropy: Tensor, table: Tensor
) -> tuple[Tensor, Tensor]:
    """What reaches the parameters `[rows, n]` from gradients `[rows]` of both."""
    rows, n = x.shape
    to_alpha, to_beta = torch.empty_like(x), torch.empty_like(x)
    block, R = _tile(n)
    _score_kernel[(triton.cdiv(rows, R),)](
        alpha, beta, x, to_log_prob, to_entropy, to_alpha, to_beta, table, rows, n,
        BLOCK=block, R=R,
    )  # fmt: skip
    return to_alpha, to_beta


def attend(qkv: Tensor, heads: int) -> Tensor:
    """`[B, A, Z]` that each of A agents gathers from the others, of `qkv [B, A, 3 * Z]`."""
    B, A, width = qkv.shape
    D = width // (3 * heads)
    out = qkv.new_empty(B, A, width // 3)
    _attend_kernel[(B, heads)](qkv, out, A, D**-0.5, H=heads, D=D, BLOCK=_padded(A), num_warps=4)
    return out


def attend_back(qkv: Tensor, grad: Tensor, heads: int) -> Tensor:
    """What reaches `qkv` from the gradient `[B, A, Z]`."""
    B, A, width = qkv.shape
    D = width // (3 * heads)
    to_qkv = torch.empty_like(qkv)
    _attend_back_kernel[(B, heads)](
        qkv, grad, to_qkv, A, D**-0.5, H=heads, D=D, BLOCK=_padded(A), num_warps=8
    )
    return to_qkv


def score_rows(rows: Tensor, weights: Tensor, width: int, numbers: int) -> Tensor:
    """`[P, M, numbers]` in bf16 of rows `[P, M, F]`; see `fused.score_rows`."""
    P, M, F = rows.shape
    out = rows.new_empty(P, M, numbers, dtype=torch.bfloat16)
    _score_rows_kernel[(_shares(M, P), P)](
        rows, weights, out, M, weights.shape[1], F, width, numbers, _padded(F), _padded(numbers),
        BLOCK=_ROWS, num_warps=4,
    )  # fmt: skip
    return out


def score_rows_back(rows: Tensor, weights: Tensor, grad: Tensor, width: int) -> Tensor:
    """What reaches the weights `[P, n]` from the gradient `[P, M, numbers]`."""
    (P, M, F), n, numbers = rows.shape, weights.shape[1], grad.shape[2]
    S = _shares(M, P)
    parts = weights.new_empty(P, S, n)
    _score_rows_back_kernel[(S, P)](
        rows, weights, grad, parts, M, n, F, width, numbers, _padded(F), _padded(numbers),
        BLOCK=_ROWS, num_warps=4,
    )  # fmt: skip
    return parts.sum(dim=1)


def _shares(M: int, P: int) -> int:
    """Among how many programs the rows of each member are divided."""
    return min(-(-M // _ROWS), -(-_PROGRAMS // P))


def _padded(n: int) -> int:
    """What a side of a product of matrices is padded to."""
    return max(16, int(triton.next_power_of_2(n)))
