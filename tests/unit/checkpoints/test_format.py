import json
import math

import pytest
import safetensors
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.checkpoints.format import (
    Damaged,
    decode_manifest,
    encode_json,
    plan,
    read_tensors,
    step_folder,
)
from runtime.checkpoints.snapshot import Snapshots
from runtime.errors import Rejected
from tests.support.checkpoints import same

NAMED = [dtype for dtype in safetensors.torch._TYPES.values() if dtype is not None]
UNNAMED = [torch.complex128, torch.float8_e8m0fnu]


def bits(dtype, shape, seed=0):
    """Random bits of a type: NaNs of every kind, infinities, subnormal numbers."""
    generator = torch.Generator().manual_seed(seed)
    if dtype == torch.bool:
        return torch.randint(0, 2, shape, generator=generator).bool()
    raw = torch.randint(0, 256, (*shape, dtype.itemsize), dtype=torch.uint8, generator=generator)
    return raw.view(dtype).reshape(shape)


def files_of(tensors, *, shard_bytes=1 << 20):
    """The shards as they would be stored, and what the manifest says of tensors in pieces."""
    snapshots = Snapshots(expected_bytes=0, shard_bytes=shard_bytes)
    layout, _ = snapshots.take(tensors)
    files = [bytes(snapshots.view(shard.start, shard.size_bytes)) for shard in layout.shards]
    snapshots.close()
    return files, layout.whole


def read_back(files, whole):
    return read_tensors([torch.frombuffer(bytearray(file), dtype=torch.uint8) for file in files], whole)


def test_every_type_that_the_library_knows_has_a_name_here():
    tensors = {str(dtype): torch.zeros(2, dtype=dtype) for dtype in NAMED}
    assert plan(tensors).whole == {}


@pytest.mark.parametrize("dtype", NAMED + UNNAMED, ids=str)
@pytest.mark.parametrize("shape", [(), (0,), (0, 3), (1,), (17, 3), (2, 1, 5)], ids=str)
def test_every_type_and_shape_keeps_its_bits(dtype, shape):
    tensors = {"a": bits(dtype, shape), "b": bits(torch.uint8, (3,)), "c": bits(dtype, shape, 1)}
    assert same(read_back(*files_of(tensors)), tensors)
    assert same(read_back(*files_of(tensors, shard_bytes=16)), tensors)


def test_tensors_without_contiguous_memory_keep_their_values():
    base = bits(torch.float32, (6, 8))
    tensors = {
        "transposed": base.t(),
        "strided": base[::2, 1::3],
        "expanded": base[:1].expand(5, 8),
        "conjugate": torch.randn(40, dtype=torch.complex64).conj(),
        "conjugate_in_pieces": torch.randn(40, dtype=torch.complex128).conj(),
        "parameter": torch.nn.Parameter(torch.randn(3)),
    }
    assert same(read_back(*files_of(tensors, shard_bytes=64)), tensors)


def test_the_librarys_reader_reads_our_shards():
    named = {str(dtype): bits(dtype, (5, 3)) for dtype in NAMED} | {
        "empty": torch.empty(0, 4),
        "scalar": torch.tensor(3.5),
        'a "name" with ü': torch.ones(1),
    }
    files, whole = files_of(named, shard_bytes=200)
    assert len(files) > 3
    assert whole == {}
    found: dict[str, torch.Tensor] = {}
    for file in files:
        found |= safetensors.torch.load(file)
    assert same(found, named)


def test_we_read_what_the_library_wrote():
    tensors = {str(dtype): bits(dtype, (4,)) for dtype in NAMED}
    file = safetensors.torch.save(tensors, metadata={"made by": "somebody"})
    assert same(read_back([file], {}), tensors)


def test_a_tensor_larger_than_a_shard_is_split_and_every_file_stays_small():
    tensors = {"large": torch.randn(1000, 10), "large#0": torch.randn(3), "small": torch.randn(2)}
    files, whole = files_of(tensors, shard_bytes=4096)
    assert len(files) >= 10
    assert max(map(len, files)) <= 4096 + 512
    assert whole["large"].pieces[0] == "large##0"
    assert same(read_back(files, whole), tensors)


def test_small_tensors_share_a_shard():
    files, _ = files_of({str(number): torch.zeros(100) for number in range(100)}, shard_bytes=10_000)
    assert len(files) == 4


def test_a_state_without_tensors_is_one_file():
    files, whole = files_of({})
    assert len(files) == 1
    assert read_back(files, whole) == {}


def test_a_sparse_tensor_is_refused_by_name():
    with pytest.raises(ValueError, match=r"model/table is a torch.sparse_coo tensor"):
        plan({"model/table": torch.eye(3).to_sparse()})


shapes = st.lists(st.integers(0, 5), max_size=3).map(tuple)
states = st.dictionaries(
    st.text(min_size=1, max_size=6), st.tuples(st.sampled_from(NAMED + UNNAMED), shapes), max_size=8
)


def test_the_one_name_that_the_format_keeps_for_itself_is_refused():
    with pytest.raises(ValueError, match="__metadata__ is no name"):
        plan({"__metadata__": torch.ones(1)})


@given(states, st.integers(1, 300))
@settings(max_examples=60, deadline=None)
def test_any_state_is_read_back_whatever_the_size_of_a_shard(kinds, shard_bytes):
    tensors = {name: bits(dtype, shape) for name, (dtype, shape) in kinds.items()}
    files, whole = files_of(tensors, shard_bytes=shard_bytes)
    for file in files:
        safetensors.torch.load(file)  # the library refuses gaps, overlaps and wrong sizes
    assert same(read_back(files, whole), tensors)


@pytest.mark.parametrize(
    "file",
    [
        b"\x08",
        b"\xff" * 8,
        (2).to_bytes(8, "little") + b"[]",
        (100).to_bytes(8, "little") + b"{}",
        (len(b'{"a":{}}')).to_bytes(8, "little") + b'{"a":{}}',
    ],
)
def test_what_is_no_shard_is_damaged(file):
    with pytest.raises(Damaged, match="no safetensors file of ours"):
        read_back([file], {})


@pytest.mark.parametrize("offsets", [(0, 400), (-4, 0), (0, 8), (4, 0)])
def test_offsets_beyond_the_file_are_damaged(offsets):
    header = json.dumps({"a": {"dtype": "F32", "shape": [1], "data_offsets": offsets}}).encode()
    with pytest.raises(Damaged, match="data_offsets"):
        read_back([len(header).to_bytes(8, "little") + header + bytes(8)], {})


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_number_that_json_cannot_hold_is_refused(value):
    with pytest.raises(ValueError, match="not JSON compliant"):
        encode_json({"best": [value]})


def test_a_key_that_is_no_string_is_refused_rather_than_turned_into_one():
    with pytest.raises(ValueError, match="the key 3 is no string"):
        encode_json({"param_groups": [{3: "x"}]})


texts = st.text("aü\u2028😀", max_size=4)
scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts
plain = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)


@given(plain)
@settings(max_examples=50)
def test_plain_data_is_read_back_exactly(value):
    assert json.loads(encode_json({"value": value})) == {"value": value}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"", "no JSON of ours"),
        (b"[]", "no JSON of ours"),
        (b'{"format":1}', "no JSON of ours"),
        (b'{"format":"2"}', "no JSON of ours"),
    ],
)
def test_what_is_no_manifest_is_damaged(text, said):
    with pytest.raises(Damaged, match=said):
        decode_manifest(text)


def test_a_newer_format_is_not_damaged_but_beyond_this_version():
    """Passed over like a damaged one, whole checkpoints would leave the record, and the run start over."""
    with pytest.raises(Rejected, match="has format 2, this Slugline reads 1: use a newer Slugline"):
        decode_manifest(b'{"format":2,"files":{}}')


def test_a_folder_is_named_by_its_step():
    assert step_folder(8) == "step-00000008"
    assert step_folder(123_456_789) == "step-123456789"
