"""The mathematics of stacked chains of linear layers, gradients written out by hand: one batched product per layer.

Samples are columns: with a_0 = xᵀ, z_l = W_l a_{l−1} + b_l, a_l = σ(z_l) and δ_L = ∂loss/∂z_L,

    ∂/∂W_l = δ_l a_{l−1}ᵀ,   ∂/∂b_l = Σ_batch δ_l,   δ_{l−1} = (W_lᵀ δ_l) ∘ σ′(z_{l−1}).

Few classes make narrow matrices; as rows they cost a third less in the product and a tenth in the softmax (measured). Wide
layers lie in memory sample by sample (`product`), though their shape is the same.
Everything here is also TorchScript, so that `descend` runs all steps of a chunk without Python's global lock: two
workers then make 1.7 times the steps of one instead of 1.2 times. Shapes: weights (k, out, in), biases (k, out) or,
where a layer has none, (k, 0).
"""

from __future__ import annotations

import torch
from torch import Tensor

from fedkin.compute.compiled import script
from fedkin.compute.steps import move


def rescaled(stored: Tensor, out: Tensor, factor: float, shift: Tensor, spread: Tensor) -> Tensor:
    """Inputs (stored·factor − shift) / spread of stored samples (n, …), in float32, then in the type of `out`."""
    plain = factor == 1.0 and shift.numel() == 0 and spread.numel() == 0
    x = out
    if not plain and out.dtype != torch.float32:
        x = torch.empty_like(out, dtype=torch.float32)
    x.copy_(stored)
    if factor != 1.0:
        x.mul_(factor)
    if shift.numel() > 0:
        x.sub_(shift)
    if spread.numel() > 0:
        x.div_(spread)
    if x.dtype != out.dtype:
        out.copy_(x)
    return out


def taken(x: Tensor, rows: Tensor, out: Tensor, factor: float, shift: Tensor, spread: Tensor) -> Tensor:
    """The inputs of these rows (n,) of stored samples, in `out` (n, …)."""
    if x.dtype == out.dtype:
        return torch.index_select(x, 0, rows, out=out)
    return rescaled(x.index_select(0, rows), out, factor, shift, spread)


def large(matrices: Tensor) -> bool:
    """Whether matrices (k, out, in) are multiplied client by client where batches differ in size: padding costs more than calls."""
    return matrices.shape[1] * matrices.shape[2] >= 2**14


def product(left: Tensor, right: Tensor, counts: list[int] | None = None) -> Tensor:
    """(k, out, in) × (k, in, n) → (k, out, n), in memory one output after the other, or one sample (column) after the other.

    Small products are fastest where many neighbours in the result fill the processor's vectors: 20 samples of 100 outputs,
    one after the other, take 0.75 of the time, those of 10 outputs 1.4 of it (measured). Hence from 32 outputs on, and where
    clients have `counts` samples of their own (k,), so that n is no multiple of eight: one output after the other then takes up
    to twice as long. Of large matrices padding is left out; its results are 0.
    """
    if counts is not None and large(left):
        found = right.new_zeros([left.shape[0], right.shape[2], left.shape[1]])
        inputs, weights, results = right.transpose(1, 2).unbind(), left.transpose(1, 2).unbind(), found.unbind()
        for k in range(len(counts)):
            torch.mm(inputs[k][: counts[k]], weights[k], out=results[k][: counts[k]])
        return found.transpose(1, 2)
    if counts is not None or left.shape[1] >= 32:
        return torch.bmm(right.transpose(1, 2), left.transpose(1, 2)).transpose(1, 2)
    return torch.bmm(left, right)


def forward(
    weights: list[Tensor], biases: list[Tensor], activations: list[str], x: Tensor, counts: list[int] | None = None
) -> list[Tensor]:
    """Inputs (k, d, n) and what every layer makes of them, (k, out, n); `counts` as in `product`."""
    a = [x]
    for layer in range(len(weights)):
        z = product(weights[layer], a[layer], counts)
        if biases[layer].numel() > 0:
            z.add_(biases[layer].unsqueeze(2))
        if activations[layer] == "relu":
            z.clamp_min_(0)
        elif activations[layer] == "tanh":
            z.tanh_()
        a.append(z)
    return a


def output_gradient(
    outputs: Tensor, targets: Tensor, weight: Tensor, form: str, delta: float, class_weight: Tensor
) -> tuple[Tensor, Tensor]:
    """loss_k = Σ_i weight_ki ℓ_ki of each client (k,), and δ_L (k, C, b).

    outputs (k, C, b); targets (k, b) labels or (k, b, …) numbers; weight (k, b).
    Cross entropy: ∂ℓ/∂z = softmax(z) − onehot(y), times class_weight[y] (C,) unless that is empty; squared error:
    ∂ℓ/∂z = 2 (z − y) / C; Huber: ∂ℓ/∂z = clip(z − y, −δ, δ) / C.
    """
    if form == "cross-entropy":
        if class_weight.numel() > 0:
            weight = weight * class_weight[targets]
        label = targets.unsqueeze(1)
        loss = -(torch.log_softmax(outputs, dim=1).gather(1, label).squeeze(1) * weight).sum(dim=1)
        slope = torch.softmax(outputs, dim=1)  # a third of the time of exp(log_softmax) (measured)
        slope.scatter_add_(1, label, torch.full_like(weight, -1).unsqueeze(1))
    else:
        slope = outputs - targets.reshape(outputs.shape[0], outputs.shape[2], -1).transpose(1, 2)
        if form == "huber":
            size = slope.abs()
            slope.clamp_(-delta, delta)
            loss = ((slope.abs() * (size - slope.abs() / 2)).mean(dim=1) * weight).sum(dim=1)
            slope.div_(outputs.shape[1])
        else:
            loss = (slope.square().mean(dim=1) * weight).sum(dim=1)
            slope.mul_(2 / outputs.shape[1])
    return loss, slope.mul_(weight.unsqueeze(1))


def below(weight: Tensor, delta: Tensor, a: Tensor, activation: str, more: Tensor | None = None) -> Tensor:
    """δ of the layer below, whose activations are `a`: (Wᵀ δ + more) ∘ σ′, with what else depends on `a`."""
    delta = product(weight.transpose(1, 2), delta)
    if more is not None:
        delta.add_(more)
    if activation == "relu":
        delta = torch.ops.aten.threshold_backward(delta, a, 0)  # 0 where a is 0, else as it is
    elif activation == "tanh":
        delta.mul_(1 - a.square())
    return delta


def clip_samples(a: list[Tensor], deltas: list[Tensor], biases: list[Tensor], weight: Tensor, clip: float) -> None:
    """Scale every sample's δ_l (k, out, b) in place so that its gradient over all layers has norm at most clip, times weight.

    The gradient of one sample at layer l is δ_l a_{l−1}ᵀ, of norm |δ_l|·|a_{l−1}| (and |δ_l| for the bias), so that
    norms of samples need no gradients of samples (Goodfellow, Efficient Per-Example Gradient Computations, 2015).
    """
    squares = torch.zeros_like(weight)
    for layer in range(len(deltas)):
        inputs = torch.linalg.vector_norm(a[layer], 2, [1]).square_()  # no memory for the squares of all inputs
        if biases[layer].numel() > 0:
            inputs.add_(1)
        squares.addcmul_(deltas[layer].square().sum(dim=1), inputs)
    factor = (weight * (clip / squares.sqrt_().clamp_min_(clip))).unsqueeze(1)
    for delta in deltas:
        delta.mul_(factor)


def batch_at(
    x: Tensor, y: Tensor, index: Tensor, buffer: Tensor, factor: float, shift: Tensor, spread: Tensor
) -> tuple[Tensor, Tensor]:
    """Of stored samples x (n, d), y (n, …) those at `index` (k, b): inputs (k, d, b), made in the buffer, and targets."""
    chosen, shape = index.reshape(-1), [index.shape[0], index.shape[1]]
    inputs = taken(x, chosen, buffer[: chosen.shape[0]], factor, shift, spread).view(shape[0], shape[1], -1)
    return inputs.transpose(1, 2), y.index_select(0, chosen).unflatten(0, shape)


def descend_chain(
    weights: list[Tensor],
    biases: list[Tensor],
    push: list[Tensor],
    activations: list[str],
    x: Tensor,
    y: Tensor,
    index: Tensor,
    share: Tensor,
    steps: list[int],
    rate: float,
    shrink: float,
    form: str,
    bend: float,
    class_weight: Tensor,
    factor: float,
    shift: Tensor,
    spread: Tensor,
) -> Tensor:
    """Each client's steps w ← shrink·w − rate·∇f(w) + push, in place; returns the sums of its losses, (k,).

    No gradient is ever stored: the product that computes it is added to the weights at once. x (n, d) and y (n, …) are
    all samples, as they are stored (`taken` makes inputs of them); index and share (k, S, b) as in `Plan`; `push` is empty, or one tensor per weight and then per bias.
    """
    active, batch = index.shape[0], index.shape[2]
    buffer = share.new_empty([active * batch, x.shape[1]])  # fresh memory for every step costs as much as the copy
    total = share.new_zeros([active])
    layers, w, b = len(weights), weights, biases
    for step in range(index.shape[1]):
        while steps[active - 1] <= step:
            active -= 1
        if active < w[0].shape[0]:
            w, b = [tensor[:active] for tensor in weights], [tensor[:active] for tensor in biases]
        inputs, targets = batch_at(x, y, index[:active, step], buffer, factor, shift, spread)
        a = forward(w, b, activations, inputs)
        loss, delta = output_gradient(a[-1], targets, share[:active, step], form, bend, class_weight)
        total[:active] += loss
        for depth in range(layers):
            layer = layers - 1 - depth
            slope = delta
            if layer > 0:
                delta = below(w[layer], delta, a[layer], activations[layer - 1])
            w[layer].baddbmm_(slope, a[layer].transpose(1, 2), beta=shrink, alpha=-rate)
            if b[layer].numel() > 0:
                if shrink != 1:
                    b[layer].mul_(shrink)
                b[layer].sub_(slope.sum(dim=2), alpha=rate)
            if len(push) > 0:
                w[layer].add_(push[layer][:active])
                b[layer].add_(push[layers + layer][:active])
    return total


def descend_by_rule(
    rows: Tensor,
    slopes: Tensor,
    weights: list[Tensor],
    biases: list[Tensor],
    weight_slopes: list[Tensor],
    bias_slopes: list[Tensor],
    push: Tensor,
    activations: list[str],
    x: Tensor,
    y: Tensor,
    index: Tensor,
    share: Tensor,
    steps: list[int],
    shrink: float,
    form: str,
    bend: float,
    class_weight: Tensor,
    rule: str,
    moments: list[Tensor],
    numbers: list[float],
    factor: float,
    shift: Tensor,
    spread: Tensor,
) -> Tensor:
    """`descend_chain` with a step rule that has moments: down g = ∇f(w) + (1 − shrink)·w − push by `steps.move`, in place.

    The gradient is stored, in `slopes` (k, P) like `rows`; weights, biases and their slopes are views of the two. `push` is
    (k, P), or empty.
    """
    active, batch = index.shape[0], index.shape[2]
    buffer, total = share.new_empty([active * batch, x.shape[1]]), share.new_zeros([active])
    for step in range(index.shape[1]):
        while steps[active - 1] <= step:
            active -= 1
        inputs, targets = batch_at(x, y, index[:active, step], buffer, factor, shift, spread)
        w = [tensor[:active] for tensor in weights]
        a = forward(w, [tensor[:active] for tensor in biases], activations, inputs)
        loss, delta = output_gradient(a[-1], targets, share[:active, step], form, bend, class_weight)
        total[:active] += loss
        for depth in range(len(w)):
            layer = len(w) - 1 - depth
            torch.bmm(delta, a[layer].transpose(1, 2), out=weight_slopes[layer][:active])
            if biases[layer].numel() > 0:
                torch.sum(delta, dim=2, out=bias_slopes[layer][:active])
            if layer > 0:
                delta = below(w[layer], delta, a[layer], activations[layer - 1])
        g = slopes[:active]
        if shrink != 1:
            g.add_(rows[:active], alpha=1 - shrink)
        if push.numel() > 0:
            g.sub_(push[:active])
        move(rule, rows[:active], g, [moment[:active] for moment in moments], numbers)
    return total


def private_step(
    weights: list[Tensor],
    biases: list[Tensor],
    push: list[Tensor],
    activations: list[str],
    inputs: Tensor,
    targets: Tensor,
    share: Tensor,
    counts: list[int],
    rate: float,
    shrink: float,
    form: str,
    bend: float,
    class_weight: Tensor,
    clip: float,
) -> Tensor:
    """One step of all clients w ← shrink·w − rate·Σ_i share_i clip(∇ℓ_i) + push, in place; returns losses (k,).

    inputs (k, d, b); share (k, b), 0 after the first `counts` (k,) samples of each client; `push` is empty, or one tensor per
    weight and then per bias.
    """
    layers = len(weights)
    a = forward(weights, biases, activations, inputs, counts)
    losses, delta = output_gradient(a[-1], targets, (share > 0).to(share.dtype), form, bend, class_weight)
    deltas = [delta]
    for depth in range(layers - 1):
        layer = layers - 1 - depth
        delta = below(weights[layer], delta, a[layer], activations[layer - 1])
        deltas.append(delta)
    deltas.reverse()
    clip_samples(a, deltas, biases, share, clip)
    for layer in range(layers):
        if large(weights[layer]):
            w, d, x = weights[layer].unbind(), deltas[layer].unbind(), a[layer].transpose(1, 2).unbind()
            for k in range(len(counts)):
                w[k].addmm_(d[k][:, : counts[k]], x[k][: counts[k]], beta=shrink, alpha=-rate)
        else:
            weights[layer].baddbmm_(deltas[layer], a[layer].transpose(1, 2), beta=shrink, alpha=-rate)
        if biases[layer].numel() > 0:
            biases[layer].mul_(shrink).sub_(deltas[layer].sum(dim=2), alpha=rate)
        if len(push) > 0:
            weights[layer].add_(push[layer])
            biases[layer].add_(push[layers + layer])
    return losses * share.amax(dim=1)


rescaled = script(rescaled)
taken = script(taken)
large = script(large)
product = script(product)
forward, output_gradient, below = script(forward), script(output_gradient), script(below)
batch_at, clip_samples = script(batch_at), script(clip_samples)
descend_chain, descend_by_rule, private_step = script(descend_chain), script(descend_by_rule), script(private_step)
