"""What a checkpoint is made of: safetensors shards laid out in one buffer, and a manifest in plain JSON.

The files are laid out before anything is copied, so that the buffer a snapshot is copied into already is
the files: a header, then the bytes of its tensors. Source of the format: the safetensors specification.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec
import torch

from runtime.checkpoints.record import SegmentEntry
from runtime.errors import Rejected

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

__all__ = [
    "FORMAT",
    "SHARD_BYTES",
    "Damaged",
    "FileEntry",
    "Layout",
    "Manifest",
    "Shard",
    "Whole",
    "decode_manifest",
    "encode_json",
    "plan",
    "read_tensors",
    "signature",
    "step_folder",
]

FORMAT = 1
SHARD_BYTES = 64 << 20  # one PUT each, no multipart; small enough to retry, large enough to stream
HEADER_ALIGNMENT = 64  # so that tensors of any element size begin where they may
SHARD_ALIGNMENT = 4096

_NAMES = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16",
    torch.int64: "I64", torch.int32: "I32", torch.int16: "I16", torch.int8: "I8",
    torch.uint64: "U64", torch.uint32: "U32", torch.uint16: "U16", torch.uint8: "U8",
    torch.bool: "BOOL", torch.complex64: "C64",
    torch.float8_e4m3fn: "F8_E4M3", torch.float8_e5m2: "F8_E5M2",
    torch.float8_e4m3fnuz: "F8_E4M3FNUZ", torch.float8_e5m2fnuz: "F8_E5M2FNUZ",
}  # fmt: skip
_DTYPES = {name: dtype for dtype, name in _NAMES.items()}

Signature = tuple[tuple[str, torch.dtype, torch.Size], ...]


class Damaged(Exception):
    """A checkpoint that is not what its record and manifest say; the text says in what."""


class FileEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One file beside the manifest. `blake3` is checked whenever the file is read."""

    name: str
    size_bytes: int
    blake3: str


class Whole(msgspec.Struct, frozen=True, kw_only=True):
    """A tensor that stands in pieces, because it is larger than a shard or of a type without a name there.

    The bytes of the pieces, one after the other, are those of the tensor.
    """

    dtype: str
    shape: tuple[int, ...]
    pieces: tuple[str, ...]


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """The last file of a checkpoint. `data` is what training keeps besides tensors.

    `started_from` is the step at which the attempt itself began (0 from scratch): what older attempts
    published after it was given up.
    """

    format: int
    slug: str
    attempt: int
    step: int
    started_from: int
    created_ms: int
    files: tuple[FileEntry, ...]
    whole: dict[str, Whole]
    segments: tuple[SegmentEntry, ...]
    data: dict[str, Any]


class _Format(msgspec.Struct):
    """All that can be known of a manifest before its format is."""

    format: int


@dataclass(frozen=True, slots=True)
class Piece:
    """Elements `first` to `first + count` of a tensor, to be copied to `start` of the buffer.

    `raw` pieces count bytes; `shape` unset means that the piece is flat.
    """

    tensor: str
    name: str
    dtype: torch.dtype
    shape: tuple[int, ...] | None
    first: int
    count: int
    raw: bool = False

    @property
    def size_bytes(self) -> int:
        """The size of these elements."""
        return self.count * self.dtype.itemsize


@dataclass(frozen=True, slots=True)
class Shard:
    """One file: `size_bytes` of the buffer from `start`, a header and then `pieces` without a gap."""

    start: int
    header: bytes
    pieces: tuple[Piece, ...]

    @property
    def size_bytes(self) -> int:
        """The file's size."""
        return len(self.header) + sum(piece.size_bytes for piece in self.pieces)


@dataclass(frozen=True, slots=True)
class Layout:
    """Where in one buffer every byte of a checkpoint's shards goes."""

    signature: Signature
    shards: tuple[Shard, ...]
    whole: Mapping[str, Whole]

    @property
    def size_bytes(self) -> int:
        """How large the buffer must be."""
        last = self.shards[-1]
        return last.start + last.size_bytes


def signature(tensors: Mapping[str, torch.Tensor]) -> Signature:
    """What a layout depends on."""
    return tuple((name, tensor.dtype, tensor.shape) for name, tensor in tensors.items())


def plan(tensors: Mapping[str, torch.Tensor], *, shard_bytes: int = SHARD_BYTES) -> Layout:
    """Lay tensors out in shards of at most about `shard_bytes`; one that is larger is split.

    Raises:
        ValueError: a tensor without plain strided memory; the text names it.
    """
    pieces: list[Piece] = []
    whole: dict[str, Whole] = {}
    for name, tensor in tensors.items():
        if name == "__metadata__":
            raise ValueError("__metadata__ is no name for a tensor: safetensors keeps it for itself")
        if tensor.layout != torch.strided or tensor.is_quantized:
            raise ValueError(
                f"{name} is a {tensor.layout} tensor of {tensor.dtype}: only dense ones are kept"
            )
        found = _pieces(name, tensor, shard_bytes, tensors)
        if found[0].shape is None:
            dtype = str(tensor.dtype).removeprefix("torch.")
            whole[name] = Whole(dtype=dtype, shape=tuple(tensor.shape), pieces=tuple(p.name for p in found))
        pieces += found
    shards: list[Shard] = []
    start = 0
    for group in _grouped(pieces, shard_bytes):
        shard = Shard(start, _header(group), group)
        shards.append(shard)
        start = _round_up(start + shard.size_bytes, SHARD_ALIGNMENT)
    return Layout(signature(tensors), tuple(shards), whole)


def _pieces(name: str, tensor: torch.Tensor, shard_bytes: int, taken: Mapping[str, Any]) -> list[Piece]:
    raw = tensor.dtype not in _NAMES
    dtype = torch.uint8 if raw else tensor.dtype
    total = tensor.numel() * (tensor.dtype.itemsize if raw else 1)
    limit = max(shard_bytes // dtype.itemsize, 1)
    if total <= limit and not raw:
        return [Piece(name, name, dtype, tuple(tensor.shape), 0, total)]
    mark = "#"
    while f"{name}{mark}0" in taken:
        mark += "#"
    return [
        Piece(name, f"{name}{mark}{number}", dtype, None, first, min(limit, total - first), raw)
        for number, first in enumerate(range(0, max(total, 1), limit))
    ]


def _grouped(pieces: Iterable[Piece], shard_bytes: int) -> list[tuple[Piece, ...]]:
    groups: list[list[Piece]] = [[]]
    filled = 0
    for piece in pieces:
        if groups[-1] and filled + piece.size_bytes > shard_bytes:
            groups.append([])
            filled = 0
        groups[-1].append(piece)
        filled += piece.size_bytes
    # Widest elements first: then each begins at a multiple of its width without a gap, as the format asks.
    return [tuple(sorted(group, key=lambda piece: -piece.dtype.itemsize)) for group in groups]


def _header(pieces: Sequence[Piece]) -> bytes:
    entries: dict[str, Any] = {}
    end = 0
    for piece in pieces:
        shape = (piece.count,) if piece.shape is None else piece.shape
        start, end = end, end + piece.size_bytes
        entries[piece.name] = {"dtype": _NAMES[piece.dtype], "shape": shape, "data_offsets": (start, end)}
    text = json.dumps(entries, separators=(",", ":")).encode()
    text = text.ljust(_round_up(8 + len(text), HEADER_ALIGNMENT) - 8)
    return len(text).to_bytes(8, "little") + text


def read_tensors(buffers: Sequence[torch.Tensor], whole: Mapping[str, Whole]) -> dict[str, torch.Tensor]:
    """Return the tensors of verified shards, as views of their `buffers` wherever one stands in one piece.

    Raises:
        Damaged: a shard is no safetensors file, or a piece is missing.
    """
    found: dict[str, torch.Tensor] = {}
    try:
        for buffer in buffers:
            found |= _read_shard(buffer)
        for name, entry in whole.items():
            flat = torch.cat([found.pop(piece).view(torch.uint8) for piece in entry.pieces])
            found[name] = flat.view(getattr(torch, entry.dtype)).reshape(entry.shape)
    except (KeyError, ValueError, TypeError, AttributeError, RuntimeError) as error:
        raise Damaged(f"a shard is no safetensors file of ours: {error!r}") from error
    return found


def _read_shard(buffer: torch.Tensor) -> dict[str, torch.Tensor]:
    size = int.from_bytes(buffer[:8].numpy().tobytes(), "little")
    if 8 + size > len(buffer):
        raise ValueError(f"its header is said to have {size} bytes")
    header = json.loads(buffer[8 : 8 + size].numpy().tobytes())
    data = buffer[8 + size :]
    tensors = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        first, last = entry["data_offsets"]
        dtype, shape = _DTYPES[entry["dtype"]], entry["shape"]
        if last - first != math.prod(shape) * dtype.itemsize or not 0 <= first <= last <= len(data):
            raise ValueError(f"{name} has data_offsets {entry['data_offsets']}")
        tensors[name] = data[first:last].view(dtype).reshape(shape)
    return tensors


def _round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


def step_folder(step: int) -> str:
    """`step-00000008`."""
    return f"step-{step:08d}"


def encode_json(data: Any) -> bytes:
    """Encode strictly: what could not be read back the same is refused.

    Raises:
        ValueError: a non-finite number, a key that is no string, or anything that JSON has no form for.
    """
    try:
        text = json.dumps(_checked(data), allow_nan=False, ensure_ascii=False, separators=(",", ":"))
    except TypeError as error:
        raise ValueError(f"a checkpoint's data must be plain JSON: {error}") from error
    return text.encode()


def _checked(value: Any) -> Any:
    if isinstance(value, dict):
        for key in value:
            if not isinstance(key, str):
                raise ValueError(f"a checkpoint's data must be plain JSON: the key {key!r} is no string")  # noqa: TRY004
        return {key: _checked(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_checked(item) for item in value]
    return msgspec.to_builtins(value) if isinstance(value, msgspec.Struct) else value


def decode_manifest(data: bytes) -> Manifest:
    """Read a manifest.

    Raises:
        Damaged: it is none.
        Rejected: it is of a newer format: whole, and nothing that an older version may pass over.
    """
    try:
        manifest = msgspec.json.decode(data, type=_Format)
        if manifest.format == FORMAT:
            return msgspec.convert(json.loads(data), Manifest)
    except (ValueError, msgspec.MsgspecError) as error:
        raise Damaged(f"the manifest is no JSON of ours: {error}") from error
    raise Rejected(
        f"a checkpoint has format {manifest.format}, this Slugline reads {FORMAT}: use a newer Slugline, or "
        "give the step of an older checkpoint with --resume"
    )
