"""Two models as plain torch, to be read from top to bottom.

Shapes: B batch, T time (bytes of a window), V vocabulary, D width, H heads, K width of a head (D / H);
P pixels of a picture, S its side, R half of it, N channels, C classes.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own name for it
from torch import Tensor, nn

from runtime.errors import Rejected

__all__ = ["Classifier", "Transformer"]


class Transformer(nn.Module):
    """A decoder-only language model: rotary positions, norms before, GELU, the embedding tied to the head.

    It takes windows of any length: rotary positions need no table to be trained for the longer ones.
    """

    def __init__(self, *, vocabulary: int, width: int, depth: int, heads: int, dropout: float = 0.0) -> None:
        super().__init__()
        if width % heads or width // heads % 2:
            raise Rejected(f"width must be an even multiple of heads, got width={width} and heads={heads}")
        self.embedding_VD = nn.Embedding(vocabulary, width)
        self.head_width = width // heads
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.ModuleList(Block(width, heads, dropout) for _ in range(depth))
        self.norm = nn.LayerNorm(width, bias=False)
        self.apply(_small)
        for block in self.blocks:  # the residual stream starts at the size of one block, not of all
            for name in ("attention_out", "mlp_out"):
                nn.init.normal_(getattr(block, name).weight, std=0.02 / (2 * depth) ** 0.5)

    def forward(self, tokens_BT: Tensor) -> Tensor:
        """Return logits_BTV: for each byte, what follows it."""
        x_BTD = self.dropout(self.embedding_VD(tokens_BT))
        angles_TK = _angles(tokens_BT.shape[1], self.head_width, tokens_BT.device)
        for block in self.blocks:
            x_BTD = block(x_BTD, angles_TK)
        return F.linear(self.norm(x_BTD), self.embedding_VD.weight)


class Block(nn.Module):
    """Attention, then a two-layer perceptron, each added to what came in."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.dropout = dropout
        self.attention_norm = nn.LayerNorm(width, bias=False)
        self.attention_in = nn.Linear(width, 3 * width, bias=False)
        self.attention_out = nn.Linear(width, width, bias=False)
        self.mlp_norm = nn.LayerNorm(width, bias=False)
        self.mlp_in = nn.Linear(width, 4 * width, bias=False)
        self.mlp_out = nn.Linear(4 * width, width, bias=False)

    def forward(self, x_BTD: Tensor, angles_TK: Tensor) -> Tensor:
        """Return x_BTD, one block further."""
        x_BTD = x_BTD + self._drop(self._attend(self.attention_norm(x_BTD), angles_TK))
        hidden_BT4D = F.gelu(self.mlp_in(self.mlp_norm(x_BTD)))
        return x_BTD + self._drop(self.mlp_out(hidden_BT4D))

    def _attend(self, x_BTD: Tensor, angles_TK: Tensor) -> Tensor:
        B, T, D = x_BTD.shape
        qkv_3BHTK = self.attention_in(x_BTD).view(B, T, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        q_BHTK, k_BHTK, v_BHTK = qkv_3BHTK
        attended_BHTK = F.scaled_dot_product_attention(
            _rotate(q_BHTK, angles_TK), _rotate(k_BHTK, angles_TK), v_BHTK, is_causal=True
        )
        out_BTD: Tensor = self.attention_out(attended_BHTK.transpose(1, 2).reshape(B, T, D))
        return out_BTD

    def _drop(self, x_BTD: Tensor) -> Tensor:
        return F.dropout(x_BTD, self.dropout, self.training)


class Classifier(nn.Module):
    """Two convolutions and a linear layer, for small square pictures in one channel.

    `side` is a picture's height and width, even; the second convolution halves it.
    """

    def __init__(self, *, side: int, channels: int, classes: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.side = side
        self.fine = nn.Conv2d(1, channels, kernel_size=3, padding=1)
        self.coarse = nn.Conv2d(channels, 2 * channels, kernel_size=3, padding=1, stride=2)
        self.dropout = nn.Dropout(dropout)
        self.out = nn.Linear(2 * channels * (side // 2) ** 2, classes)

    def forward(self, pixels_BP: Tensor) -> Tensor:
        """Return logits_BC."""
        x_B1SS = pixels_BP.view(-1, 1, self.side, self.side)
        x_BNRR = F.relu(self.coarse(F.relu(self.fine(x_B1SS))))
        logits_BC: Tensor = self.out(self.dropout(x_BNRR.flatten(1)))
        return logits_BC


def _small(module: nn.Module) -> None:
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=0.02)


def _angles(length: int, head_width: int, device: torch.device) -> Tensor:
    """Return angles_TK: position times frequency, each frequency for two halves of a head.

    Source: Su et al., RoFormer, 2021 (arXiv:2104.09864), with the halves rotated as in GPT-NeoX.
    """
    exponents = torch.arange(0, head_width, 2, device=device) / head_width
    angles = torch.arange(length, device=device)[:, None] / 10_000**exponents
    return torch.cat([angles, angles], dim=1)


def _rotate(x_BHTK: Tensor, angles_TK: Tensor) -> Tensor:
    first, second = x_BHTK.chunk(2, dim=-1)
    turned_BHTK = torch.cat([-second, first], dim=-1)
    return (x_BHTK * angles_TK.cos() + turned_BHTK * angles_TK.sin()).to(x_BHTK.dtype)
