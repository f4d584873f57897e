"""`telemetry.toml`: what it means, and what is said about each mistake."""

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.telemetry.layout import Layout, LayoutError, Panel, Stat, parse_layout
from tests.support.docs import ROOT, blocks

CONTRACT = ROOT / "tests" / "contract" / "telemetry"
TWO = '[[panel]]\ny = "a"\n\n[[panel]]\n'
"""A good panel, and the head of a second one."""
STATS = '[[stat]]\ny = "a"\n\n[[stat]]\n'


def panel(text):
    return parse_layout("[[panel]]\n" + text).panels[0]


def test_the_example_means_what_its_comments_say():
    layout = parse_layout((CONTRACT / "telemetry.toml").read_bytes())
    assert layout.to_json() == json.loads((CONTRACT / "telemetry.json").read_bytes())
    loss, f1, recall = layout.panels
    assert [loss.x, f1.x, recall.x] == ["step"] * 3
    assert (loss.title, loss.y, loss.scale) == ("Loss", ("loss", "eval_loss"), "log")
    assert (f1.min, f1.max, f1.rule) == (0.9, 1.0, 0.95)
    assert (recall.y, recall.wide) == (("eval_leak_recall",), True)
    assert layout.stats == (Stat(title="Samples/s", y=("eval_samples_per_second",), reduce="last"),)


def test_what_is_left_out_is_filled_in():
    assert parse_layout('[[panel]]\ny = ["a", "b.c"]\n[[stat]]\ny = "d"') == Layout(
        x=None,
        panels=(
            Panel(
                title="a, b.c",
                x=None,
                y=("a", "b.c"),
                scale="linear",
                min=None,
                max=None,
                rule=None,
                wide=False,
            ),
        ),
        stats=(Stat(title="d", y=("d",), reduce="last"),),
    )


def test_a_panels_own_x_goes_before_the_files():
    layout = parse_layout('x = "step"\n[[panel]]\ny = "a"\nx = "epoch"\n[[panel]]\ny = "b"')
    assert [panel.x for panel in layout.panels] == ["epoch", "step"]


@pytest.mark.parametrize("text", ["", "\n# nothing\n", "\ufeff", "panel = []"], ids=ascii)
def test_a_file_without_panels_is_a_layout_without_panels(text):
    assert parse_layout(text) == Layout(x=None, panels=(), stats=())


def test_an_inline_list_of_tables_is_what_it_is_in_toml():
    assert parse_layout('panel = [{y = "a"}, {y = "b"}]') == parse_layout(
        '[[panel]]\ny="a"\n[[panel]]\ny="b"'
    )


def test_a_file_from_windows_is_read():
    text = (CONTRACT / "telemetry.toml").read_text()
    assert parse_layout(b"\xef\xbb\xbf" + text.replace("\n", "\r\n").encode()) == parse_layout(text)


def test_bounds_may_be_integers_negative_or_one_alone():
    both, below, above = (
        panel('y = "a"\nmin = -1\nmax = 0'),
        panel('y = "a"\nmax = 2.5'),
        panel('y = "a"\nmin = 0'),
    )
    assert [(one.min, one.max) for one in (both, below, above)] == [(-1.0, 0.0), (None, 2.5), (0.0, None)]


def test_four_keys_on_one_panel_are_taken():
    assert panel('y = ["a", "b", "c", "d"]').y == ("a", "b", "c", "d")


@pytest.mark.parametrize("reduce", ["last", "min", "max"])
def test_a_stat_reduces_to(reduce):
    assert parse_layout(f'[[stat]]\ny = "a"\nreduce = "{reduce}"').stats[0].reduce == reduce


REFUSED = {
    "key-of-a-panel": (
        TWO + 'y = "b"\nscael = "log"',
        'telemetry [[panel]] 2 has "scael", which is not one of title, x, y, scale, min, max, rule, wide',
    ),
    "key-of-a-stat": (
        STATS + 'y = "b"\nwide = true',
        'telemetry [[stat]] 2 has "wide", which is not one of title, y, reduce',
    ),
    "key-of-the-file": ('pannel = "a"', 'telemetry has "pannel", which is not one of x, panel, stat'),
    "key-to-look-at": (
        '"a\u202eb\\n" = 1',
        'telemetry has "a\\u202eb\\n", which is not one of x, panel, stat',
    ),
    "scale": (
        TWO + 'y = "b"\nscale = "logarithmic"',
        'telemetry [[panel]] 2 has scale "logarithmic", which is not one of linear, log',
    ),
    "scale-true": (
        TWO + 'y = "b"\nscale = true',
        "telemetry [[panel]] 2 has scale true, which is not one of linear, log",
    ),
    "reduce": (
        STATS + 'y = "b"\nreduce = "mean"',
        'telemetry [[stat]] 2 has reduce "mean", which is not one of last, min, max',
    ),
    "reduce-list": (
        STATS + 'y = "b"\nreduce = ["last"]',
        'telemetry [[stat]] 2 has reduce ["last"], which is not one of last, min, max',
    ),
    "min-above-max": (
        TWO + 'y = "b"\nmin = 2\nmax = 1.5',
        "telemetry [[panel]] 2 has min 2, which is above max 1.5; min must be below max",
    ),
    "min-is-max": (
        TWO + 'y = "b"\nmin = 1\nmax = 1.0',
        "telemetry [[panel]] 2 has min 1, which is the same as max 1.0; min must be below max",
    ),
    "min-true": (TWO + 'y = "b"\nmin = true', "telemetry [[panel]] 2 has min true, which is not a number"),
    "max-text": (TWO + 'y = "b"\nmax = "1"', 'telemetry [[panel]] 2 has max "1", which is not a number'),
    "min-nan": (
        TWO + 'y = "b"\nmin = nan',
        "telemetry [[panel]] 2 has min nan, which is not a finite number",
    ),
    "max-inf": (
        TWO + 'y = "b"\nmax = inf',
        "telemetry [[panel]] 2 has max inf, which is not a finite number",
    ),
    "min-negative-inf": (
        TWO + 'y = "b"\nmin = -inf',
        "telemetry [[panel]] 2 has min -inf, which is not a finite number",
    ),
    "rule-huge": (
        TWO + f'y = "b"\nrule = 1{"0" * 400}',
        f"telemetry [[panel]] 2 has rule 1{'0' * 56}..., which is not a finite number",
    ),
    "rule-hex": (
        TWO + f'y = "b"\nrule = 0x{"f" * 9000}',
        "telemetry [[panel]] 2 has rule a value too large to show, which is not a finite number",
    ),
    "rule-list": (
        TWO + 'y = "b"\nrule = [1, 2]',
        "telemetry [[panel]] 2 has rule [1, 2], which is not a number",
    ),
    "rule-date": (
        TWO + 'y = "b"\nrule = 1979-05-27',
        'telemetry [[panel]] 2 has rule "1979-05-27", which is not a number',
    ),
    "log-min": (
        TWO + 'y = "b"\nscale = "log"\nmin = 0',
        "telemetry [[panel]] 2 has min 0, which is not on a log scale; it must be above 0",
    ),
    "log-rule": (
        TWO + 'y = "b"\nscale = "log"\nrule = -1.5',
        "telemetry [[panel]] 2 has rule -1.5, which is not on a log scale; it must be above 0",
    ),
    "wide-1": (TWO + 'y = "b"\nwide = 1', "telemetry [[panel]] 2 has wide 1, which is not true or false"),
    "title-number": (TWO + 'y = "b"\ntitle = 3', "telemetry [[panel]] 2 has title 3, which is not text"),
    "title-of-a-stat": (
        STATS + 'y = "b"\ntitle = {}',
        "telemetry [[stat]] 2 has title {}, which is not text",
    ),
    "x-of-the-file": ("x = 3", "telemetry has x 3, which is not a key"),
    "x-of-a-panel": (TWO + 'y = "b"\nx = ["c"]', 'telemetry [[panel]] 2 has x ["c"], which is not a key'),
    "x-empty": (
        TWO + 'y = "b"\nx = ""',
        'telemetry [[panel]] 2 has x "", which is not letters, digits, _ and - between dots, as a key is',
    ),
    "no-y": (TWO, "telemetry [[panel]] 2 has no y, which is required: the key, or the keys, to draw"),
    "no-y-in-a-stat": (
        STATS,
        "telemetry [[stat]] 2 has no y, which is required: the key, or the keys, to draw",
    ),
    "y-number": (TWO + "y = 3", "telemetry [[panel]] 2 has y 3, which is not a key or a list of keys"),
    "y-true": (TWO + "y = true", "telemetry [[panel]] 2 has y true, which is not a key or a list of keys"),
    "y-none": (TWO + "y = []", "telemetry [[panel]] 2 has y [], which is not a key or a list of keys"),
    "y-mixed": (
        TWO + 'y = ["a", 1]',
        'telemetry [[panel]] 2 has y ["a", 1], which is not a key or a list of keys',
    ),
    "y-slash": (
        TWO + 'y = ["a", "a/b"]',
        'telemetry [[panel]] 2 has y "a/b", which is not letters, digits, _ and - between dots, as a key is',
    ),
    "5-keys": (
        TWO + 'y = ["a", "b", "c", "d", "e"]',
        "telemetry [[panel]] 2 has 5 keys in y, which is more than 4",
    ),
    "panel-once": (
        '[panel]\ny = "a"',
        "telemetry has [panel], which is not [[panel]]; write [[panel]] above each panel",
    ),
    "stat-once": (
        '[stat]\ny = "a"',
        "telemetry has [stat], which is not [[stat]]; write [[stat]] above each stat",
    ),
    "panel-number": ("panel = 3", "telemetry has panel 3, which is not a [[panel]] table"),
    "panel-texts": ('panel = [{y = "a"}, "b"]', 'telemetry [[panel]] 2 is "b", which is not a table'),
    "long": (
        TWO + f'y = "b"\nwide = "{"x" * 99}"',
        f'telemetry [[panel]] 2 has wide "{"x" * 56}..., which is not true or false',
    ),
    "syntax": (TWO + "y = b\n", "telemetry is not TOML at line 5, column 5: Invalid value"),
    "syntax-crlf": ("[[panel]]\r\ny =\r\n", "telemetry is not TOML at line 2, column 4: Invalid value"),
    "syntax-end": ('[[panel]]\ny = ["a"\n\n', "telemetry is not TOML at line 2, at the end: Unclosed array"),
    "syntax-twice": (
        'x = "a"\nx = "b"\n# end',
        "telemetry is not TOML at line 2, column 8: Cannot overwrite a value",
    ),
    "digits": (
        f"\nx = {'1' * 1001}",
        "telemetry has more than 1,000 digits on line 2; write fewer",
    ),
    "no-utf-8": (b'[[panel]]\ny = "\xff"', "telemetry is not UTF-8 at line 2; write TOML in UTF-8"),
    "no-unicode": ('[[panel]]\ny = "\ud800"', "telemetry is not UTF-8 at line 2; write TOML in UTF-8"),
    "deep": ("x = " + "[" * 5000, "telemetry nests too deeply to be read; write plain tables and lists"),
    "dots": ("\nx" + ".x" * 1001 + " = 1", "telemetry has more than 1,000 dots on line 2; write fewer"),
    "large": ("#" * 65_537, "telemetry has 65,537 bytes, which is more than 65,536"),
}


@pytest.mark.parametrize(("text", "said"), REFUSED.values(), ids=REFUSED)
def test_a_mistake_is_answered_with_its_table_its_key_and_what_is_accepted(text, said):
    with pytest.raises(LayoutError) as raised:
        parse_layout(text)
    assert str(raised.value) == said
    assert "\n" not in str(raised.value)


def test_the_docs_show_the_example_and_sentences_that_are_said():
    page = ROOT / "docs" / "div.md"
    assert (CONTRACT / "telemetry.toml").read_text() in [block.text for block in blocks(page, "toml")]
    table = page.read_text().split("| mistake |")[1].split("\n\n")[0]
    sentences = re.findall(r"\| `([^`]*)` \|$", table, re.MULTILINE)
    assert len(sentences) > 10
    assert {f"telemetry {sentence}" for sentence in sentences} <= {said for _, said in REFUSED.values()}


def test_the_first_mistake_of_the_file_is_said_and_unknown_keys_of_a_table_before_the_rest():
    text = '[[panel]]\ny = "a"\nscale = "cubic"\nwdie = true\n[[panel]]\n'
    with pytest.raises(LayoutError, match='1 has "wdie"'):
        parse_layout(text)


PIECES = [
    "[[panel]]\n",
    "[[stat]]\n",
    "[panel]\n",
    'y = "a"\n',
    'y = ["a", "b"]\n',
    "min = 1\n",
    "max = nan\n",
]
PIECES += [
    'x = "step"\n',
    "wide = true\n",
    "rule = 1e999\n",
    'title = "',
    '"',
    "=",
    "\n",
    "'''",
    "{",
    "}",
    "[",
    "1979-05-27",
]


@given(
    st.one_of(st.binary(max_size=60), st.lists(st.sampled_from(PIECES), max_size=12).map("".join), st.text())
)
def test_whatever_is_in_the_file_it_is_a_layout_or_one_line_of_error(text):
    said = ""
    try:
        layout = parse_layout(text)
    except LayoutError as error:
        said = str(error)
    else:
        assert json.loads(json.dumps(layout.to_json(), allow_nan=False)) == layout.to_json()
    assert not said or (said.startswith("telemetry ") and len(said.splitlines()) == 1)
