"""Parts that are packed by themselves are, one after another, one gzip."""

import gzip
import zlib

from hypothesis import given
from hypothesis import strategies as st

from infra.server.store import deflated

TEXTS = st.lists(st.binary(max_size=300).map(lambda text: text * 3), max_size=6)


@given(TEXTS)
def test_parts_after_one_another_are_one_gzip_of_all_texts(texts):
    parts = [deflated.pack(text) for text in texts]
    packed = b"".join(deflated.gzipped(parts))
    assert gzip.decompress(packed) == b"".join(texts)
    inflate = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)
    assert inflate.decompress(packed) == b"".join(texts)
    assert inflate.eof
    assert not inflate.unused_data


@given(TEXTS)
def test_packed_parts_after_one_another_unpack_to_all_texts(texts):
    assert deflated.unpack(b"".join(deflated.pack(text).data for text in texts)) == b"".join(texts)


@given(st.binary(), st.binary())
def test_a_check_sum_is_reckoned_from_those_of_its_parts(one, other):
    joined = deflated.crc_joined(zlib.crc32(one), zlib.crc32(other), len(other))
    assert joined == zlib.crc32(one + other)


def test_a_size_that_a_gzip_counts_round_is_right_too():
    """The sum of 5 GiB of zeros, which nobody needs to have in memory for it."""
    crc, size = zlib.crc32(bytes(2**20)), 2**20
    whole = 0
    for _ in range(5):
        whole = deflated.crc_joined(whole, crc, size)
    assert whole == zlib.crc32(bytes(5 * 2**20))
