"""What can be told about a model by looking at it: nothing private is read, nothing is run."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm
from torch.nn.parameter import UninitializedParameter

from dpilot.engine.base import Problem, trainable

Finding = tuple[str, str]


def check(model: nn.Module) -> list[Problem]:
    """Every problem of a model, each with a remedy; [] means ready.

    Example:
        >>> from torch import nn
        >>> check(nn.Sequential(nn.Linear(4, 4), nn.GroupNorm(2, 4)))
        []
        >>> print(check(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)))[0])
        1 (BatchNorm1d): mixes samples: its statistics are those of the batch. Use dpilot.engine.replace_batch_norm.
    """
    problems = [
        Problem(f"{name or 'model'} ({type(module).__name__})", *found)
        for name, module in model.named_modules()
        for test in TESTS
        if (found := test(module)) is not None
    ]
    return problems + [Problem(name, *found) for name, found in parameter_findings(model)]


def batch_norm(module: nn.Module) -> Finding | None:
    if isinstance(module, _BatchNorm) and (module.training or module.running_mean is None):
        return "mixes samples: its statistics are those of the batch.", "Use dpilot.engine.replace_batch_norm."
    return None


def has_running_statistics(module: nn.Module) -> Finding | None:
    if isinstance(module, _InstanceNorm) and module.track_running_stats and module.training:
        return "keeps running statistics of the samples, without noise.", "Use track_running_stats=False."
    return None


def batch_scaled_embedding(module: nn.Module) -> Finding | None:
    if not isinstance(module, (nn.Embedding, nn.EmbeddingBag)) or not module.weight.requires_grad:
        return None
    if module.max_norm is not None:
        return "max_norm rewrites its weights from the ids of the batch.", "Use max_norm=None."
    if module.scale_grad_by_freq:
        return "scale_grad_by_freq divides by counts over the batch.", "Use scale_grad_by_freq=False."
    return None


def is_scripted(module: nn.Module) -> Finding | None:
    if isinstance(module, torch.jit.ScriptModule) and any(p.requires_grad for p in module.parameters()):
        return "is TorchScript, which cannot be watched.", 'Use the original module, or engine="loop".'
    return None


def parallel(module: nn.Module) -> Finding | None:
    if isinstance(module, (nn.DataParallel, nn.parallel.DistributedDataParallel)):
        return (
            "runs the model behind the engine's back.",
            "Use the wrapped module (.module); Trainer adds up over ranks.",
        )
    if any(is_distributed(kind) for kind in type(module).__mro__):  # FSDP, fully_shard, replicate
        return (
            "is spread over processes, each of which would add noise alone.",
            "Use the plain module, whole on every rank, or a Trainer for one that fully_shard spread over its ranks.",
        )
    return None


def is_distributed(kind: type) -> bool:
    """Whether a class is one of torch.distributed, which is not loaded for the question."""
    return f"{kind.__module__}.".startswith("torch.distributed.")


TESTS: tuple[Callable[[nn.Module], Finding | None], ...] = (
    batch_norm,
    has_running_statistics,
    batch_scaled_embedding,
    is_scripted,
    parallel,
)


def parameter_findings(model: nn.Module) -> list[tuple[str, Finding]]:
    """Problems of parameters themselves."""
    if any(isinstance(p, UninitializedParameter) for p in model.parameters()):
        return [("model", ("has lazy parameters without a shape.", "Run it once on any input of the right shape."))]
    parameters = trainable(model)
    if not parameters:
        return [("model", ("has no trainable parameter.", "Set requires_grad=True on what should be trained."))]
    spread = [name for name, p in model.named_parameters() if is_distributed(type(p))]
    if spread:
        return [(name, ("lies in pieces in several processes.", "Use a plain parameter.")) for name in spread]
    strange = [name for name, p in parameters.items() if not (p.dtype.is_floating_point or p.dtype.is_complex)]
    return [
        (name, ("is not a floating point parameter.", "Use a floating point dtype, or freeze it.")) for name in strange
    ]


def replace_batch_norm(model: nn.Module, *, groups: int = 32) -> nn.Module:
    """Put GroupNorm where BatchNorm was, in place, and return the model.

    The number of groups is the largest divisor of the channels up to ``groups`` that leaves at least two channels a
    group (eight for BatchNorm1d, which may have no positions to average over); scale and shift are copied, running
    statistics are dropped. A model that is itself a BatchNorm comes back as a new module.

    Example:
        >>> from torch import nn
        >>> replace_batch_norm(nn.Sequential(nn.Conv2d(3, 48, 3), nn.BatchNorm2d(48)))[1].num_groups
        24
    """
    if isinstance(model, _BatchNorm):
        return group_norm_like(model, groups)
    for name, child in model.named_children():
        setattr(model, name, replace_batch_norm(child, groups=groups))
    return model


def group_norm_like(norm: _BatchNorm, groups: int) -> nn.GroupNorm:
    """A GroupNorm with the BatchNorm's channels, affine values, device, dtype and training mode."""
    channels = norm.num_features
    least = 8 if isinstance(norm, nn.BatchNorm1d) else 2
    most = min(groups, max(1, channels // least))
    count = max(g for g in range(1, most + 1) if channels % g == 0)
    made = nn.GroupNorm(count, channels, eps=norm.eps, affine=norm.affine)
    if norm.affine:
        made.to(norm.weight)
        made.weight.data.copy_(norm.weight.data)
        made.bias.data.copy_(norm.bias.data)
        made.weight.requires_grad_(norm.weight.requires_grad)
        made.bias.requires_grad_(norm.bias.requires_grad)
    return made.train(norm.training)
