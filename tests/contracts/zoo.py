"""Small models with everything people train: each is built afresh, with a batch and a per-sample loss."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

N = 4
CLASSES = 5


@dataclass(frozen=True)
class Case:
    """A model, a batch of N samples, a loss, and the engines that can take it."""

    model: nn.Module
    batch: Any
    loss: Callable[..., Tensor]
    per_batch: bool = False
    vmap: bool = True


def cross_entropy(out: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(out, y, reduction="none")


DEVICE = torch.device(os.environ.get("DPILOT_TEST_DEVICE", "cpu"))
"""Where models and batches live; DPILOT_TEST_DEVICE=cuda runs the same contract on a GPU."""


def labels() -> Tensor:
    return torch.arange(N) % CLASSES


def classify(model: nn.Module, *shape: int, vmap: bool = True) -> Case:
    return Case(model, (torch.randn(N, *shape), labels()), cross_entropy, vmap=vmap)


def read(model: nn.Module, length: int = 6, words: int = 11, vmap: bool = True) -> Case:
    return Case(model, (torch.randint(1, words, (N, length)), labels()), cross_entropy, vmap=vmap)


class Last(nn.Module):
    """Take one output of a module that gives several, then classify."""

    def __init__(self, body: nn.Module, width: int, *, pick: Callable[[Any], Tensor]) -> None:
        super().__init__()
        self.body, self.head, self.pick = body, nn.Linear(width, CLASSES), pick

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.pick(self.body(x)))


class Pick(nn.Module):
    def __init__(self, function: Callable[[Any], Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Any) -> Any:
        return self.function(x)


def mean_tokens() -> nn.Module:
    return Pick(lambda x: x.mean(1))


def mlp() -> Case:
    return classify(nn.Sequential(nn.Linear(7, 9), nn.ReLU(inplace=True), nn.Linear(9, 5)), 7)


def linear_many_dimensions() -> Case:
    body = [nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 7, bias=False), nn.Flatten(), nn.Linear(42, 5)]
    return classify(nn.Sequential(*body), 2, 3, 6)


def linear_long_tokens() -> Case:
    return classify(nn.Sequential(nn.Linear(3, 2), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(40, 5)), 20, 3)


def linear_gram() -> Case:
    return classify(
        nn.Sequential(nn.Linear(12, 12), nn.ReLU(), nn.Linear(12, 12), mean_tokens(), nn.Linear(12, 5)), 3, 12
    )


def conv1d() -> Case:
    body = [nn.Conv1d(3, 4, 3, stride=2, padding=1), nn.ReLU(inplace=True), nn.Conv1d(4, 6, 2, dilation=2)]
    return classify(nn.Sequential(*body, nn.AdaptiveAvgPool1d(2), nn.Flatten(), nn.Linear(12, 5)), 3, 12)


def conv2d() -> Case:
    body = [nn.Conv2d(2, 4, 3, stride=2, padding=1), nn.ReLU(inplace=True), nn.Conv2d(4, 8, 2, bias=False)]
    return classify(nn.Sequential(*body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5)), 2, 7, 7)


def conv3d() -> Case:
    body = [nn.Conv3d(2, 3, (2, 3, 2), stride=(1, 2, 1), padding=(0, 1, 1)), nn.ReLU(inplace=True)]
    return classify(nn.Sequential(*body, nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(3, 5)), 2, 4, 5, 3)


def conv_paddings() -> Case:
    body = [nn.Conv2d(2, 4, 3, padding="same", padding_mode="circular"), nn.ReLU(), nn.Conv2d(4, 4, 3, padding="same")]
    more = [nn.Conv2d(4, 4, 3, padding="valid"), nn.Conv2d(4, 4, 3, padding=2, padding_mode="reflect")]
    return classify(nn.Sequential(*body, *more, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 5)), 2, 6, 6)


def conv_groups() -> Case:
    body = [nn.Conv2d(4, 6, 3, groups=2), nn.ReLU(), nn.Conv2d(6, 6, 3, groups=6, padding=1), nn.Conv2d(6, 8, 1)]
    return classify(nn.Sequential(*body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5)), 4, 6, 6)


def conv_gram() -> Case:
    body = [nn.Conv2d(6, 8, 3, stride=2), nn.Tanh(), nn.Flatten(), nn.Linear(32, 5)]
    return classify(nn.Sequential(*body), 6, 5, 5)


def conv_transposed() -> Case:
    body = [nn.ConvTranspose2d(4, 6, 3, stride=2, padding=1, output_padding=1, groups=2), nn.ReLU(inplace=True)]
    more = [
        nn.ConvTranspose2d(6, 3, 2, dilation=3, output_padding=2),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(12, 5),
    ]
    return classify(nn.Sequential(*body, *more), 4, 4, 3)


def conv_transposed_1d_3d() -> Case:
    body = [nn.ConvTranspose1d(3, 4, 3, stride=2), nn.ReLU(), nn.Unflatten(1, (2, 2)), nn.Unflatten(3, (3, 3))]
    more = [nn.ConvTranspose3d(2, 2, 2), nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(2, 5)]
    return classify(nn.Sequential(*body, *more), 3, 4)


def embedding() -> Case:
    case = read(nn.Sequential(nn.Embedding(11, 6, padding_idx=3), nn.Tanh(), mean_tokens(), nn.Linear(6, 5)))
    case.batch[0][:, :3] = torch.tensor([3, 3, 7])
    return case


def embedding_bags() -> Case:
    class Bags(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mean = nn.EmbeddingBag(11, 6, mode="mean", padding_idx=2)
            self.sum = nn.EmbeddingBag(11, 6, mode="sum")
            self.max = nn.EmbeddingBag(11, 6, mode="max")
            self.head = nn.Linear(6, CLASSES)

        def forward(self, ids: Tensor) -> Tensor:
            weights = torch.linspace(0.5, 1.5, ids.shape[1]).to(self.head.weight).expand(ids.shape)
            return self.head(torch.tanh(self.mean(ids) + self.sum(ids, per_sample_weights=weights) * self.max(ids)))

    return read(Bags(), vmap=False)


def layer_norm() -> Case:
    body = [nn.Linear(4, 6), nn.LayerNorm((3, 6)), nn.ReLU(), nn.LayerNorm(6), mean_tokens(), nn.Linear(6, 5)]
    return classify(nn.Sequential(*body), 3, 4)


def rms_norm() -> Case:
    return classify(nn.Sequential(nn.RMSNorm(6), nn.Linear(6, 8), nn.RMSNorm(8, eps=1e-3), nn.Linear(8, 5)), 6)


def channel_norms() -> Case:
    body = [nn.Conv2d(2, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(inplace=True), nn.Conv2d(4, 4, 2)]
    more = [
        nn.InstanceNorm2d(4, affine=True),
        nn.PReLU(4),
        nn.PReLU(),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(16, 5),
    ]
    return classify(nn.Sequential(*body, *more), 2, 6, 6, vmap=False)


def frozen_batch_norm() -> Case:
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(inplace=True), nn.Linear(8, 5))
    model[1].running_mean.uniform_(-1, 1)
    model[1].running_var.uniform_(0.5, 2)
    return classify(model.eval(), 6)


def self_attention() -> Case:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attend = nn.MultiheadAttention(8, 2, batch_first=True, add_bias_kv=True, add_zero_attn=True)
            self.head = nn.Linear(8, CLASSES)

        def forward(self, x: Tensor, mask: Tensor) -> Tensor:
            return self.head(self.attend(x, x, x, key_padding_mask=mask)[0].mean(1))

    mask = torch.zeros(N, 5, dtype=torch.bool)
    mask[:, 4] = True
    return Case(Block(), ((torch.randn(N, 5, 8), mask), labels()), cross_entropy)


def cross_attention() -> Case:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attend = nn.MultiheadAttention(8, 2)  # samples second
            self.apart = nn.MultiheadAttention(8, 2, kdim=6, vdim=6, batch_first=True, bias=False)
            self.head = nn.Linear(8, CLASSES)

        def forward(self, x: Tensor, memory: Tensor) -> Tensor:
            causal = torch.ones(3, 3, dtype=torch.bool, device=x.device).triu(1)
            mixed = self.attend(x.transpose(0, 1), x.transpose(0, 1) * 2, x.transpose(0, 1), attn_mask=causal)[0]
            mixed = self.apart(mixed.transpose(0, 1), memory, memory, need_weights=False)[0]
            return self.head(mixed.mean(1))

    return Case(Block(), ({"x": torch.randn(N, 3, 8), "memory": torch.randn(N, 5, 6)}, labels()), cross_entropy)


def transformer_encoder() -> Case:
    layer = nn.TransformerEncoderLayer(8, 2, 12, dropout=0.0, batch_first=True, norm_first=True)
    return classify(
        nn.Sequential(nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), mean_tokens(), nn.Linear(8, 5)), 4, 8
    )


def transformer_decoder() -> Case:
    class Decoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.TransformerDecoderLayer(8, 2, 12, dropout=0.0, batch_first=True)
            self.head = nn.Linear(8, CLASSES)

        def forward(self, x: Tensor, memory: Tensor) -> Tensor:
            return self.head(self.layer(x, memory).mean(1))

    return Case(Decoder(), ((torch.randn(N, 3, 8), torch.randn(N, 4, 8)), labels()), cross_entropy)


def lstm() -> Case:
    return classify(Last(nn.LSTM(4, 6, batch_first=True), 6, pick=lambda out: out[0][:, -1]), 5, 4, vmap=False)


def lstm_deep() -> Case:
    body = nn.LSTM(4, 6, num_layers=2, bidirectional=True, batch_first=True, proj_size=3)
    return classify(Last(body, 6, pick=lambda out: out[0].mean(1) + out[1][1].mean((0, 2))[:, None]), 4, 4, vmap=False)


def gru() -> Case:
    return classify(Last(nn.GRU(4, 6, batch_first=True), 6, pick=lambda out: out[1][-1]), 5, 4, vmap=False)


def gru_deep() -> Case:
    class Deep(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.GRU(4, 3, num_layers=2, bidirectional=True)  # time first inside
            self.start = nn.Parameter(torch.randn(4, 1, 3))
            self.cells = nn.ModuleList([nn.LSTMCell(6, 5), nn.GRUCell(5, 5), nn.RNNCell(5, 5)])
            self.head = nn.Linear(5, CLASSES)

        def forward(self, x: Tensor) -> Tensor:
            out = self.body(x.transpose(0, 1), self.start.expand(-1, x.shape[0], -1).contiguous())[0]
            h = self.cells[0](out.transpose(0, 1)[:, -1])[0]
            return self.head(self.cells[2](self.cells[1](h)))

    return classify(Deep(), 4, 4, vmap=False)


def recurrent_plain() -> Case:
    body = nn.RNN(4, 6, num_layers=2, nonlinearity="relu", bias=False, batch_first=True)
    return classify(Last(body, 6, pick=lambda out: out[0].mean(1)), 4, 4, vmap=False)


def resnet() -> Case:
    class Block(nn.Module):
        def __init__(self, inside: int, outside: int, stride: int) -> None:
            super().__init__()
            self.conv1 = nn.Conv2d(inside, outside, 3, stride, 1, bias=False)
            self.norm1, self.norm2 = nn.GroupNorm(2, outside), nn.GroupNorm(2, outside)
            self.relu = nn.ReLU(inplace=True)
            self.conv2 = nn.Conv2d(outside, outside, 3, 1, 1, bias=False)
            self.down = nn.Sequential(nn.Conv2d(inside, outside, 1, stride, bias=False), nn.GroupNorm(2, outside))

        def forward(self, x: Tensor) -> Tensor:
            out = self.norm2(self.conv2(self.relu(self.norm1(self.conv1(x)))))
            out += self.down(x)
            return self.relu(out)

    stem = [nn.Conv2d(3, 4, 3, padding=1, bias=False), nn.GroupNorm(2, 4), nn.ReLU(inplace=True), nn.MaxPool2d(2)]
    blocks = [Block(4, 4, 1), Block(4, 6, 2), Block(6, 8, 2), Block(8, 8, 1)]
    return classify(nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5)), 3, 8, 8)


def unet() -> Case:
    class UNet(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.down1, self.down2 = nn.Conv2d(2, 4, 3, padding=1), nn.Conv2d(4, 6, 3, padding=1)
            self.norm = nn.GroupNorm(3, 6)
            self.up = nn.ConvTranspose2d(6, 4, 2, stride=2)
            self.out = nn.Conv2d(8, 3, 3, padding=1)

        def forward(self, x: Tensor) -> Tensor:
            skip = F.relu(self.down1(x), inplace=True)
            deep = F.relu(self.norm(self.down2(F.max_pool2d(skip, 2))))
            return self.out(torch.cat([skip, self.up(deep)], dim=1))

    def loss(out: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(out, y, reduction="none").flatten(1).mean(1)

    return Case(UNet(), (torch.randn(N, 2, 6, 6), torch.randint(0, 3, (N, 6, 6))), loss)


def vision_transformer() -> Case:
    class Vision(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.patch = nn.Conv2d(2, 8, 2, stride=2)
            self.token = nn.Parameter(torch.randn(1, 1, 8))
            self.position = nn.Parameter(torch.randn(1, 5, 8))
            self.scale = nn.Parameter(torch.rand(8))
            self.block = nn.TransformerEncoderLayer(8, 2, 12, dropout=0.0, batch_first=True)
            self.norm, self.head = nn.LayerNorm(8), nn.Linear(8, CLASSES)

        def forward(self, x: Tensor) -> Tensor:
            x = self.patch(x).flatten(2).transpose(1, 2)
            x = torch.cat((self.token.expand(x.shape[0], -1, -1), x), dim=1) + self.position
            return self.head(self.norm(x + self.scale * self.block(x))[:, 0])

    return classify(Vision(), 2, 4, 4)


def bare_parameters() -> Case:
    class Bare(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Parameter(torch.randn(6, 8)), nn.Parameter(torch.randn(8))
            self.c, self.d = nn.Parameter(torch.tensor(0.7)), nn.Parameter(torch.randn(3, 1, 8))
            self.heads = nn.Parameter(torch.randn(3, 8, 4))
            self.left = nn.Parameter(torch.randn(2, 3))
            self.out, self.table = nn.Parameter(torch.randn(5, 8)), nn.Parameter(torch.randn(7, 4))

        def forward(self, x: Tensor) -> Tensor:
            x = x @ self.a[: x.shape[-1]] * self.b  # (n, 3, 8)
            x = torch.where(x > 0, x, self.b - self.c)
            x = x + self.d.squeeze(1) / (2 + torch.sin(self.c))
            y = (x.unsqueeze(2) @ self.heads).squeeze(2) + self.table[torch.arange(3)]
            y = y.type_as(self.a).to(self.b).view_as(self.table[:3].expand_as(y)) + self.table[:3].expand_as(y)
            y = torch.einsum("btd,ef->btdef", y, self.left).flatten(2).mean(1)[:, :8]
            return (self.left @ x).flatten(1)[:, :8] @ self.out.t() + F.linear(y, self.out) * self.c

    return classify(Bare(), 3, 6)


def relative_bias() -> Case:
    class Windows(nn.Module):
        """Attention inside windows with a trained bias, shared by all windows and written out for each of them."""

        def __init__(self) -> None:
            super().__init__()
            self.mix, self.head = nn.Linear(6, 18), nn.Linear(6, CLASSES)
            self.table = nn.Parameter(torch.randn(5, 2))
            self.register_buffer("places", (torch.arange(3)[:, None] - torch.arange(3) + 2).flatten())

        def forward(self, x: Tensor) -> Tensor:
            q, k, v = self.mix(x.reshape(-1, 3, 6)).unflatten(-1, (3, 2, 3)).permute(2, 0, 3, 1, 4)
            bias = self.table[self.places].view(3, 3, 2).permute(2, 0, 1).unsqueeze(0)
            shared = F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
            apart = F.scaled_dot_product_attention(q, k, v, attn_mask=bias.expand(q.shape[0], -1, -1, -1))
            return self.head((shared + apart).transpose(1, 2).reshape(x.shape[0], 6, 6).mean(1))

    return classify(Windows(), 6, 6)


def rare_operations() -> Case:
    class Rare(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.pair = nn.Bilinear(4, 6, 5)
            self.centres = nn.Parameter(torch.randn(5, 6))
            self.vector = nn.Parameter(torch.randn(6))

        def forward(self, x: Tensor) -> Tensor:
            near = F.cosine_similarity(x[:, None, :], self.centres[None], dim=-1) + torch.cdist(x, self.centres)
            return self.pair(x[:, :4], x) + near * torch.matmul(x, self.vector)[:, None]

    return classify(Rare(), 6)


def parametrised() -> Case:
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 5))
    nn.utils.parametrizations.weight_norm(model[0])
    return classify(model, 6)


def frozen_parts() -> Case:
    model = nn.Sequential(
        nn.Conv2d(2, 4, 3), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(36, 8), nn.ReLU(), nn.Linear(8, 5)
    )
    model[0].requires_grad_(False)
    model[3].weight.requires_grad_(False)
    model[5].bias.requires_grad_(False)
    return classify(model, 2, 5, 5)


def tied_embeddings() -> Case:
    class Language(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.places = nn.Embedding(7, 6), nn.Embedding(5, 6)
            self.mix, self.head = nn.Linear(6, 6), nn.Linear(6, 7, bias=False)
            self.head.weight = self.words.weight

        def forward(self, ids: Tensor) -> Tensor:
            x = self.words(ids) + self.places(torch.arange(ids.shape[1], device=ids.device).unsqueeze(0))
            return self.head(torch.tanh(self.mix(x)))

    def loss(out: Tensor, y: Tensor) -> Tensor:
        each = F.cross_entropy(out.transpose(1, 2), y, reduction="none", ignore_index=-100)
        return each.sum(1) / (y != -100).sum(1).clamp_min(1)

    targets = torch.randint(0, 7, (N, 4))
    targets[1, 2:], targets[2] = -100, -100
    return Case(Language(), (torch.randint(0, 7, (N, 4)), targets), loss)


def reused_module() -> Case:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mix, self.norm, self.conv = nn.Linear(8, 8), nn.LayerNorm(8), nn.Conv1d(3, 3, 3, padding=1)
            self.head = nn.Linear(8, CLASSES)

        def forward(self, x: Tensor) -> Tensor:
            for _ in range(3):
                x = torch.tanh(self.norm(self.mix(x)) + self.conv(x))
            return self.head(x.mean(1)) + F.linear(x[:, 0], self.mix.weight[:5])

    return classify(Twice(), 3, 8)


def flattened_tokens() -> Case:
    class Windows(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mix, self.norm = nn.Linear(4, 6), nn.LayerNorm(6)
            self.conv, self.scale = nn.Conv1d(2, 2, 3, padding=1), nn.Parameter(torch.rand(6))
            self.head = nn.Linear(12, CLASSES)

        def forward(self, x: Tensor) -> Tensor:
            flat = x.reshape(-1, 2, 4)
            return self.head((self.conv(self.norm(self.mix(flat))) * self.scale).reshape(x.shape[0], 3, 12).mean(1))

    return classify(Windows(), 6, 4)


def noncontiguous() -> Case:
    case = classify(nn.Sequential(nn.Conv1d(3, 6, 3), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(24, 5)), 3, 6)
    return Case(case.model, (torch.randn(6, 3, N).transpose(0, 2), case.batch[1]), cross_entropy)


def gpt2() -> Case:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=17, n_positions=8, n_embd=8, n_layer=1, n_head=2, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0
    )

    def loss(model: nn.Module, batch: Any) -> Tensor:
        logits = model(input_ids=batch["input_ids"]).logits[:, :-1]
        return F.cross_entropy(logits.transpose(1, 2), batch["labels"][:, 1:], reduction="none").mean(1)

    ids = torch.randint(0, 17, (N, 5))
    return Case(GPT2LMHeadModel(config), {"input_ids": ids, "labels": ids}, loss, per_batch=True, vmap=False)


def bert() -> Case:
    from transformers import BertConfig, BertForSequenceClassification

    config = BertConfig(
        vocab_size=17, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=12,
        max_position_embeddings=8, num_labels=CLASSES, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip

    def loss(model: nn.Module, batch: Any) -> Tensor:
        logits = model(input_ids=batch["input_ids"], attention_mask=batch["mask"]).logits
        return F.cross_entropy(logits, batch["labels"], reduction="none")

    batch = {"input_ids": torch.randint(0, 17, (N, 5)), "mask": torch.ones(N, 5, dtype=torch.long), "labels": labels()}
    batch["mask"][1, 3:] = 0
    return Case(BertForSequenceClassification(config), batch, loss, per_batch=True, vmap=False)


def lora() -> Case:
    from peft import LoraConfig, get_peft_model

    class Base(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.mix = nn.Embedding(11, 6), nn.Linear(6, 8)
            self.conv, self.head = nn.Conv1d(8, 6, 3, padding=1), nn.Linear(6, CLASSES)

        def forward(self, ids: Tensor) -> Tensor:
            x = torch.tanh(self.mix(self.words(ids)))
            return self.head(self.conv(x.transpose(1, 2)).mean(2))

    config = LoraConfig(r=2, target_modules=["words", "mix", "conv"], modules_to_save=["head"], init_lora_weights=False)
    return read(get_peft_model(Base(), config))


MODELS = (
    mlp, linear_many_dimensions, linear_long_tokens, linear_gram, conv1d, conv2d, conv3d, conv_paddings, conv_groups,
    conv_gram, conv_transposed, conv_transposed_1d_3d, embedding, embedding_bags, layer_norm, rms_norm, channel_norms,
    frozen_batch_norm, self_attention, cross_attention, transformer_encoder, transformer_decoder, lstm, lstm_deep,
    gru, gru_deep, recurrent_plain, resnet, unet, vision_transformer, bare_parameters, relative_bias,
    rare_operations, parametrised,
    frozen_parts, tied_embeddings, reused_module, flattened_tokens, noncontiguous, gpt2, bert, lora,
)  # fmt: skip
ZOO: dict[str, Callable[[], Case]] = {make.__name__: make for make in MODELS}


def build(name: str, dtype: torch.dtype, seed: int = 0) -> Case:
    """A case in one dtype."""
    torch.manual_seed(seed)
    case = ZOO[name]()

    def cast(tree: Any) -> Any:
        if isinstance(tree, Tensor):
            return tree.to(DEVICE, dtype) if tree.is_floating_point() else tree.to(DEVICE)
        if isinstance(tree, dict):
            return {k: cast(v) for k, v in tree.items()}
        return tuple(cast(v) for v in tree)

    return Case(case.model.to(DEVICE, dtype), cast(case.batch), case.loss, case.per_batch, case.vmap)
