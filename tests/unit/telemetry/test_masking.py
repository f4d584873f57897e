"""Secrets in a stream: found in each form, over reads and lines, and nothing else is touched."""

import json
import re
from itertools import pairwise
from urllib.parse import quote, quote_plus, urlencode

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from runtime.errors import Rejected
from runtime.telemetry.masking import MAX_SECRET_BYTES, Masker, _forms, check_secret

KEY = "wandb/Sécret <k&y>~ \"q\\b\"=+'1'"
PEM = "-----BEGIN KEY-----\nMIIEvQIBADANBgkqhkiG\n9w0BAQEF/ASC+w==\n-----END KEY-----\n"


def masked(data, *secrets):
    return Masker({f"S{number}": value for number, value in enumerate(secrets)}).mask(data)


def in_parts(masker, data, cuts):
    parts = [masker.feed(data[start:end]) for start, end in pairwise([0, *sorted(cuts), len(data)])]
    return b"".join([*parts, masker.flush()])


def lower(text):
    return re.sub("%[0-9A-F]{2}", lambda match: match[0].lower(), text)


FORMS = {
    "text": KEY,
    "json": json.dumps(KEY)[1:-1],
    "json-unicode": json.dumps(KEY, ensure_ascii=False)[1:-1],
    "json-slashes": json.dumps(KEY)[1:-1].replace("/", "\\/"),
    "json-unicode-slashes": json.dumps(KEY, ensure_ascii=False)[1:-1].replace("/", "\\/"),
    "json-upper": json.dumps(KEY)[1:-1].replace("\\u00e9", "\\u00E9"),
    "json-go": json.dumps(KEY, ensure_ascii=False)[1:-1]
    .replace("<", "\\u003c")
    .replace(">", "\\u003e")
    .replace("&", "\\u0026"),
    "json-gson": json.dumps(KEY, ensure_ascii=False)[1:-1]
    .replace("<", "\\u003c")
    .replace(">", "\\u003e")
    .replace("&", "\\u0026")
    .replace("=", "\\u003d")
    .replace("'", "\\u0027"),
    "url": quote(KEY),
    "url-slashes": quote(KEY, safe=""),
    "url-lower": lower(quote(KEY, safe="")),
    "url-plus": quote_plus(KEY),
    "url-plus-lower": lower(quote_plus(KEY)),
    "url-query": urlencode({"k": KEY})[2:],
    "url-form-of-a-browser": quote_plus(KEY, safe="*").replace("~", "%7E"),
    "url-component-of-a-browser": quote(KEY, safe="!*'()"),
    "url-of-a-browser": quote(KEY, safe="!*'();/?:@&=+$,#"),
}


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_a_secret_is_masked_in_each_form(form):
    assert masked(f"before {form} after".encode(), KEY) == b"before *** after"


def test_a_line_of_json_with_a_secret_in_it_is_still_json():
    line = json.dumps({"step": 1, "url": f"https://u:{quote_plus(KEY)}@host/", "key": KEY}).encode()
    assert json.loads(masked(line, KEY)) == {"step": 1, "url": "https://u:***@host/", "key": "***"}


def test_a_secret_that_ends_in_a_backslash_leaves_the_line_json():
    assert json.loads(masked(json.dumps({"k": "abcd\\", "n": 1}).encode(), "abcd\\")) == {"k": "***", "n": 1}


def test_what_holds_no_secret_is_as_it_was():
    data = b'{"step": 120, "loss": 0.41}\n\xff\xfe\0 abc\r\n'
    assert masked(data, "abcd", KEY, PEM) == data
    assert masked(data) == data


@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_a_secret_split_over_reads_is_masked(size):
    data = b"a hf_0123456789 b hf_01234 hf_0123456789\nhf_"
    masker = Masker({"T": "hf_0123456789"})
    parts = [masker.feed(data[start : start + size]) for start in range(0, len(data), size)]
    assert b"".join([*parts, masker.flush()]) == b"a *** b hf_01234 ***\nhf_"


def test_only_what_may_be_the_beginning_of_a_secret_is_held_back():
    masker = Masker({"T": "hf_0123456789", "P": "-BEGIN-END-"})
    assert masker.feed(b"loss 0.4\nh") == b"loss 0.4\n"
    assert masker.feed(b"f_01 ") == b"hf_01 "
    assert masker.feed(b"hf_012345678") == b""
    assert masker.feed(b"9") == b"***"
    assert masker.feed(b"\nx" * 100_000 + b"-BEG") == b"\nx" * 100_000
    assert masker.flush() == b"-BEG"


def test_a_masker_is_at_rest_where_another_may_go_on():
    masker = Masker({"T": "hf_0123456789", "P": PEM})
    rests = []
    for chunk in (b"a\n", b"h", b"f_", b"1\n", b"hf_0123456789\n", b"--", b"x\n", PEM.encode()[:20], b"x\n"):
        masker.feed(chunk)
        rests.append(masker.at_rest)
    assert rests == [True, False, False, True, True, False, True, False, True]


def test_a_secret_that_is_the_beginning_of_another_is_masked_with_it():
    assert masked(b"abcd abcdefgh abcdef", "abcd", "abcdefgh") == b"*** *** ***ef"
    assert masked(b"abcd abcdefgh abcdef", "abcdefgh", "abcd") == b"*** *** ***ef"


def test_of_secrets_that_overlap_the_union_is_masked_once():
    assert masked(b"<abcdefgh>", "abcdef", "cdefgh") == b"<***>"
    assert masked(b"<abababab>", "abab") == b"<***>"
    assert masked(b"<abcdefghij>", "cdef", "abcdefghi") == b"<***j>"


def test_secrets_that_touch_are_masked_once():
    assert masked(b"<abcdefgh>", "abcd", "efgh") == b"<***>"


def test_a_secret_over_several_lines_is_masked_and_its_line_feeds_stay():
    assert masked(f"key: {PEM}loss 1\n".encode(), PEM) == b"key: ***\n***\n***\n***\nloss 1\n"
    assert masked(PEM.replace("\n", "\r\n").encode(), PEM).count(b"***") == 4


def test_a_secret_over_several_lines_is_masked_in_json_and_in_urls():
    assert masked(json.dumps({"k": PEM}).encode(), PEM) == b'{"k": "***\\n"}'
    assert masked(b"?k=" + quote_plus(PEM).encode() + b"&", PEM) == b"?k=***%0A&"


def test_each_long_line_of_a_secret_is_masked_where_it_stands_alone():
    secret = '{\n  "type": "account",\n  "key": "0123/456789"\n}\n'
    assert masked(b"{ } 12", secret) == b"{ } 12"
    assert masked(b'x "key": "0123/456789" y', secret) == b"x *** y"
    assert masked(b"9w0BAQEF%2FASC%2Bw%3D%3D", PEM) == b"***"


def test_a_secret_over_several_lines_is_masked_also_where_its_lines_are_short():
    assert masked(b"ab\ncd\nef\nab cd\n", "ab\ncd\nef") == b"***\n***\n***\nab cd\n"


def test_white_space_around_a_secret_is_not_part_of_it():
    assert masked(b"token=abcdef;", "abcdef\n") == b"token=***;"
    assert masked(b"token=abcdef;", "  abcdef  ") == b"token=***;"


def test_a_secret_that_begins_with_a_line_feed_holds_back_no_line():
    masker = Masker({"S": "\nabcdef\n"})
    assert masker.feed(b"loss 0.4\n") == b"loss 0.4\n"
    assert masker.at_rest


COMMON = {"nothing": "", "blanks": "     \n", "one": "a", "three": "abc", "digits": "1234567", "word": "true"}
COMMON |= {"fraction": "0.01", "power": "1e-05"}


@pytest.mark.parametrize("value", COMMON.values(), ids=COMMON)
def test_a_secret_that_stands_everywhere_masks_nothing(value):
    data = b'{"a": true, "b": 1234567, "abc": "     ", "lr": 0.01, "c": 1e-05}\n' + value.encode()
    masker = Masker({"BAD": value, "GOOD": "abcdef"})
    assert masker.unmasked == ("BAD",)
    assert masker.mask(data + b"abcdef") == data + b"***"


REFUSED = {
    "nothing": ("", "has 0 characters .* at least 4"),
    "one": (
        "a",
        "has 1 characters .* at least 4, as a shorter one cannot be masked without masking much else",
    ),
    "three": (" abc\n", "has 3 characters without the white space around them"),
    "digits": (
        "1234567",
        "has 7 characters, all as in numbers; such a one must have at least 8, as fewer occur",
    ),
    "fraction": ("0.01", "has 4 characters, all as in numbers"),
    "power": ("-1.5e-4\n", "has 7 characters, all as in numbers"),
    "end of a power": ("e-05", "has 4 characters, all as in numbers"),
    "word": ("true", "is a word of JSON"),
    "nul": ("abc\0def", "holds a NUL character, which no environment variable can"),
    "surrogate": ("abc\ud800def", "is not valid Unicode"),
    "long": ("x" * (MAX_SECRET_BYTES + 1), "has 65,537 bytes; it must have at most 65,536"),
}


@pytest.mark.parametrize(("value", "said"), REFUSED.values(), ids=REFUSED)
def test_a_secret_that_cannot_be_masked_is_refused_without_its_value(value, said):
    with pytest.raises(Rejected, match=f"^secret TOKEN {said}") as raised:
        check_secret("TOKEN", value)
    assert len(value.strip()) < 3 or value.strip() not in str(raised.value)


@pytest.mark.parametrize(
    "value",
    ["abcd", "12345678", "0.123456", "-e+.", "a b c", "日本語鍵", KEY, PEM, "x" * MAX_SECRET_BYTES],
    ids=["letters", "digits", "number", "no digit", "spaces", "kanji", "a key", "PEM", "long"],
)
def test_other_secrets_are_taken(value):
    check_secret("TOKEN", value)


def test_a_secret_of_64_kib_in_pieces_takes_bounded_time():
    secret = "ab" * (MAX_SECRET_BYTES // 2)
    data = secret.encode() + b"c"
    masker = Masker({"S": secret})
    parts = [masker.feed(data[start : start + 4096]) for start in range(0, len(data), 4096)]
    assert b"".join([*parts, masker.flush()]) == b"***c"


# Any secrets in any bytes


def model(data, secrets):
    """The union of all places of all forms, byte by byte; a mark for each stretch of it within a line."""
    hidden = bytearray(len(data))
    for value in secrets:
        for form in set(_forms(value)):
            for start in range(len(data) - len(form) + 1):
                if data[start : start + len(form)] == form:
                    hidden[start : start + len(form)] = b"\1" * len(form)
    out = []
    for at, byte in enumerate(data):
        if not hidden[at] or byte == 10:
            out.append(bytes([byte]))
        elif not at or not hidden[at - 1] or data[at - 1] == 10:
            out.append(b"***")
    return b"".join(out)


secrets_of = st.lists(
    st.text(alphabet="ab/é\n", min_size=4, max_size=9).filter(lambda s: len(s.strip()) >= 4), max_size=3
)


@st.composite
def streams(draw):
    secrets = draw(secrets_of)
    pieces = [form for value in secrets for form in sorted(set(_forms(value)))] + [
        b"a",
        b"b",
        b"\n",
        b"%2",
        b"\\",
    ]
    parts = draw(st.lists(st.one_of(st.sampled_from(pieces), st.binary(max_size=3)), max_size=8))
    cut = [part[draw(st.integers(0, len(part))) :] if draw(st.booleans()) else part for part in parts]
    data = b"".join(cut)
    return secrets, data, draw(st.lists(st.integers(0, len(data)), max_size=6))


@given(streams())
@example((["abab", "ab\nab"], b"ababab\nabab\nb", [2, 3, 4, 7]))
def test_whatever_the_reads_the_union_is_masked_and_the_rest_is_as_it_was(stream):
    secrets, data, cuts = stream
    names = {f"S{number}": value for number, value in enumerate(secrets)}
    expected = model(data, secrets)
    assert Masker(names).mask(data) == expected
    masker = Masker(names)
    assert in_parts(masker, data, cuts) == expected
    assert masker.at_rest
    assert in_parts(masker, data, []) == expected
    assert expected.count(b"\n") == data.count(b"\n")


@given(st.dictionaries(st.text(max_size=3), st.text(max_size=12), max_size=4), st.binary(max_size=200))
def test_no_secret_is_left_and_no_value_raises(secrets, data):
    masker = Masker(secrets)
    for name, value in secrets.items():
        if name in masker.unmasked or "*" in value:
            continue
        for form in (value, json.dumps(value)[1:-1], quote_plus(value)):
            assert form.encode() not in masker.mask(data + form.encode() + data)
