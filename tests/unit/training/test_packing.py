from __future__ import annotations

import json
import math
from collections import OrderedDict, deque
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from runtime.training.packing import pack, unpack

KEYS = st.text(max_size=4) | st.integers()
LEAVES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5)
TREES = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(KEYS, inner, max_size=3)
    ),
)


def there_and_back(value: Any) -> Any:
    packed, tensors = pack("x", value)
    return unpack(json.loads(json.dumps(packed, allow_nan=False)), tensors)


@given(TREES)
def test_any_nesting_comes_back_equal_and_of_the_same_types(tree: Any):
    assert repr(there_and_back(tree)) == repr(tree)


def test_nan_and_infinities_come_back():
    nan, inf, minus = there_and_back([math.nan, math.inf, -math.inf])
    assert math.isnan(nan)
    assert (inf, minus) == (math.inf, -math.inf)


def test_tensors_are_named_by_their_place_and_not_copied():
    tensor = torch.arange(3)
    packed, tensors = pack("optimizer", {"state": {0: {"exp_avg": tensor}}})
    assert list(tensors) == ["optimizer.state.0.exp_avg"]
    assert tensors["optimizer.state.0.exp_avg"].data_ptr() == tensor.data_ptr()
    assert unpack(packed, tensors)["state"][0]["exp_avg"] is tensors["optimizer.state.0.exp_avg"]


def test_two_places_with_one_name_keep_their_own_tensors():
    one, two = torch.tensor(1), torch.tensor(2)
    value = there_and_back({"a.b": one, "a": {"b": two}})
    assert (value["a.b"].item(), value["a"]["b"].item()) == (1, 2)


def test_numpy_arrays_and_scalars_come_back_as_such():
    value = there_and_back([np.arange(3, dtype=np.int16), np.float32(0.25), np.arange(3, dtype=">i2")])
    assert value[0].dtype == np.int16
    assert (value[2].dtype, value[2].tolist()) == (np.dtype(">i2"), [0, 1, 2])
    assert value[0].tolist() == [0, 1, 2]
    assert isinstance(value[1], np.float32)
    assert value[1] == np.float32(0.25)


def test_an_array_that_changes_later_is_kept_as_it_was():
    array = np.zeros(2)
    packed, tensors = pack("x", array)
    array[:] = 1
    assert unpack(packed, tensors).tolist() == [0.0, 0.0]


def test_an_ordered_dict_keeps_its_order():
    assert list(there_and_back(OrderedDict(b=1, a=2))) == ["b", "a"]


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ({"a": [deque()]}, "x.a.0 is a deque, which a checkpoint cannot keep"),
        ({1.5: 0}, "key 1.5"),
        ({(1, 2): 0}, "key"),
        (np.array(["a"]), "NumPy array of <U1"),
        (np.ma.array([1, 2], mask=[False, True]), "x is a masked NumPy array"),
        (len, "builtin_function_or_method"),
    ],
)
def test_what_cannot_be_kept_is_refused_by_its_place(value: Any, says: str):
    with pytest.raises(ValueError, match=says):
        pack("x", value)
