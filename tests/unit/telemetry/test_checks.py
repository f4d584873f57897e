"""`checks.toml`: what it takes, and how a result is judged."""

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.telemetry.checks import OPERATIONS, Check, LayoutError, judge, parse_checks
from tests.support.docs import ROOT, blocks

F1 = '[[check]]\nkey = "eval.f1"\nop = ">="\nthreshold = 0.95\n'


def one(result, op=">=", threshold=0.95, key="eval.f1"):
    (verdict,) = judge([Check(key=key, op=op, threshold=threshold)], result)
    return verdict


def test_checks_stand_in_their_order():
    checks = parse_checks(F1 + '[[check]]\nkey = "loss"\nop = "<"\nthreshold = 1')
    assert [check.to_json() for check in checks] == [
        {"key": "eval.f1", "op": ">=", "threshold": 0.95},
        {"key": "loss", "op": "<", "threshold": 1},
    ]


def test_no_checks_judge_nothing():
    assert parse_checks("") == ()
    assert judge((), None) == ()


REFUSED = {
    "key": (F1 + "tresh = 1", 'checks [[check]] 1 has "tresh", which is not one of key, op, threshold'),
    "table": ('[[checks]]\nkey = "a"', 'checks has "checks", which is not one of check'),
    "once": (
        '[check]\nkey = "a"',
        "checks has [check], which is not [[check]]; write [[check]] above each check",
    ),
    "no-key": (F1 + '[[check]]\nop = ">"', "checks [[check]] 2 has no key, which is required"),
    "no-op": ('[[check]]\nkey = "a"', "checks [[check]] 1 has no op, which is required"),
    "no-threshold": (
        '[[check]]\nkey = "a"\nop = ">"',
        "checks [[check]] 1 has no threshold, which is required",
    ),
    "op": (
        F1.replace(">=", "=>"),
        'checks [[check]] 1 has op "=>", which is not one of <, <=, >, >=, ==, !=',
    ),
    "threshold-true": (
        F1.replace("0.95", "true"),
        "checks [[check]] 1 has threshold true, which is not a number",
    ),
    "threshold-text": (
        F1.replace("0.95", '"1"'),
        'checks [[check]] 1 has threshold "1", which is not a number',
    ),
    "threshold-nan": (
        F1.replace("0.95", "nan"),
        "checks [[check]] 1 has threshold nan, which is not a finite number",
    ),
    "key-number": (F1.replace('"eval.f1"', "1"), "checks [[check]] 1 has key 1, which is not text"),
    "key-empty": (
        F1.replace("eval.f1", ""),
        'checks [[check]] 1 has key "", which is not a key of the result',
    ),
    "syntax": (
        F1 + "key",
        "checks is not TOML at line 5, at the end: Expected '=' after a key in a key/value pair",
    ),
    "no-utf-8": (b"\xff", "checks is not UTF-8 at line 1; write TOML in UTF-8"),
}


@pytest.mark.parametrize(("text", "said"), REFUSED.values(), ids=REFUSED)
def test_a_mistake_is_answered_with_its_table_its_key_and_what_is_accepted(text, said):
    with pytest.raises(LayoutError) as raised:
        parse_checks(text)
    assert str(raised.value) == said


@pytest.mark.parametrize(
    ("op", "passing"),
    [("<", [1]), ("<=", [1, 2]), (">", [3]), (">=", [2, 3]), ("==", [2, 2.0]), ("!=", [1, 3])],
)
def test_an_op_compares_the_result_with_the_threshold(op, passing):
    for value in (1, 2, 2.0, 3):
        verdict = one(json.dumps({"a": value}), op, 2.0, "a")
        assert verdict.passed == (value in passing)
        assert verdict.value == value
        assert verdict.reason == ("" if verdict.passed else f"a is {value}, which is not {op} 2.0")


@pytest.mark.parametrize(
    "result", ['{"eval": {"f1": 0.96}}', '{"eval.f1": 0.96}', '\ufeff{"eval": {"f1": 0.96}}'], ids=ascii
)
def test_a_key_reaches_into_nested_objects(result):
    assert one(result).to_json() == {
        "key": "eval.f1",
        "op": ">=",
        "threshold": 0.95,
        "value": 0.96,
        "passed": True,
        "reason": "",
    }


def test_a_key_of_a_result_may_be_any_text():
    assert one('{"train/loss": 1}', "==", 1, "train/loss").passed
    assert one("{}", "==", 1, "a\nb").reason == 'the result has no "a\\nb"'


def test_the_example_of_the_docs_is_read_and_every_op_is_listed():
    page = ROOT / "docs" / "div.md"
    examples = [block.text for block in blocks(page, "toml") if "[[check]]" in block.text]
    assert parse_checks(examples[0]) == (Check(key="eval.f1", op=">=", threshold=0.95),)
    section = page.read_text().split("\n## Checks\n")[1].split("\n## ")[0]
    assert all(f"`{op}`" in section for op in OPERATIONS)
    said = {reason for _, reason in FAILED.values()} | {"eval.f1 is 0.93, which is not >= 0.95"}
    for reason in re.findall(r"`((?:the r|eval\.f1 is)[^`]*)`", section):
        assert reason in said or any(one.startswith(reason.removesuffix("...")) for one in said)


FAILED = {
    "no-result": (None, "the run wrote no result"),
    "empty": ("", "the result is not JSON: Expecting value: line 1 column 1 (char 0)"),
    "half": ('{"eval": ', "the result is not JSON: Expecting value: line 1 column 10 (char 9)"),
    "array": ("[1]", "the result is [1], which is not an object"),
    "missing": ('{"f1": 1}', "the result has no eval.f1"),
    "an-object": ('{"eval": {"f1": {"a": 1}}}', "the result has no eval.f1"),
    "text": ('{"eval": {"f1": "0.99"}}', 'eval.f1 is "0.99", which is not a number'),
    "true": ('{"eval": {"f1": true}}', "eval.f1 is true, which is not a number"),
    "null": ('{"eval": {"f1": null}}', "eval.f1 is null, which is not a number"),
    "list": ('{"eval": {"f1": [1]}}', "eval.f1 is [1], which is not a number"),
    "nan": ('{"eval": {"f1": NaN}}', "eval.f1 is nan, which is not a finite number"),
    "infinity": ('{"eval": {"f1": Infinity}}', "eval.f1 is inf, which is not a finite number"),
    "1e400": ('{"eval": {"f1": 1e400}}', "eval.f1 is inf, which is not a finite number"),
    "5000-digits": (f'{{"eval": {{"f1": {"9" * 5000}}}}}', "eval.f1 is inf, which is not a finite number"),
    "deep": ("[" * 100_000, "the result nests too deeply"),
}


@pytest.mark.parametrize(("result", "reason"), FAILED.values(), ids=FAILED)
def test_a_result_without_the_number_fails_the_check_and_says_why(result, reason):
    verdict = one(result, op="!=")
    assert (verdict.passed, verdict.value, verdict.reason) == (False, None, reason)


results = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=3)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.sampled_from(["eval", "f1", "a"]), inner)
    ),
).map(json.dumps)


@given(st.one_of(st.text(), results))
def test_whatever_the_result_holds_each_check_has_a_verdict(result):
    verdicts = judge([*parse_checks(F1), Check(key="a", op="!=", threshold=0.0)], result)
    assert [verdict.key for verdict in verdicts] == ["eval.f1", "a"]
    for verdict in verdicts:
        assert verdict.passed == (not verdict.reason)
        assert json.loads(json.dumps(verdict.to_json(), allow_nan=False)) == verdict.to_json()
