"""What values may be, one by one: how they are shown, limits in words, what files may hold."""

from __future__ import annotations

import argparse
import math
import sys
from pathlib import Path
from typing import Any

import pytest

from mammoth_sbs.values import (
    PERCENT,
    SEED,
    Unfit,
    accuracies,
    at_least,
    each,
    is_plain,
    is_text,
    maybe,
    number,
    path,
    shown,
    table,
    text,
)


@pytest.mark.parametrize(("value", "says"), [
    (None, "None"), (3, "3"), (-0.5, "-0.5"), ("a'b", '"a\'b"'), (b"x", "b'x'"), ([1, 2], "a list"), ({}, "a dict"),
    (10**40 - 1, "9" * 40), (10**40, "a huge number"), (-(10**40), "a huge number"), (10**39, f"1{'0' * 39}"),
    ("x" * 38, f"'{'x' * 38}'"), ("x" * 39, f"'{'x' * 36}..."), (object(), "a object")])
def test_a_value_is_shown_short(value: Any, says: str) -> None:
    assert shown(value) == says


@pytest.mark.parametrize(("values", "limits", "range_", "whole"), [
    (number(0, 1), "from 0 to 1", "0 to 1", "a number from 0 to 1"),
    (number(), "", "", "a number"),
    (number(0.5), "of at least 0.5", "at least 0.5", "a number of at least 0.5"),
    (number(above=0), "above 0", "above 0", "a number above 0"),
    (number(0, below=1), "of at least 0 and below 1", "at least 0 and below 1", "a number of at least 0 and below 1"),
    (number(above=0, most=90), "above 0 and up to 90", "above 0 and up to 90", "a number above 0 and up to 90"),
    (number(most=3), "up to 3", "up to 3", "a number up to 3"),
    (number(below=3), "below 3", "below 3", "a number below 3"),
    (at_least(1), "of at least 1", "at least 1", "a whole number of at least 1"),
    (at_least(0, 5), "from 0 to 5", "0 to 5", "a whole number from 0 to 5"),
    (number(0, 0.95, words=("auto", "rule")), "from 0 to 0.95", "0 to 0.95, auto, rule",
     "a number from 0 to 0.95, auto or rule")])
def test_limits_in_words(values: Any, limits: str, range_: str, whole: str) -> None:
    assert (values.limits, values.range, str(values)) == (limits, range_, whole)


@pytest.mark.parametrize(("values", "held", "refused"), [
    (number(0, 1), [0, 1, 0.5], [-0.1, 1.1, math.nan, math.inf]), (number(above=0), [1e-9, 1e308], [0, -1, math.inf]),
    (number(0, below=1), [0, 0.99], [1, -0.1]), (number(), [-1e308, sys.float_info.max], [math.inf, -math.inf]),
    (at_least(1), [1, 10**400], [0]), (number(0), [0, 10**300], [10**400, -1]), (PERCENT, [0, 100], [-1, 100.1]),
    (SEED, [0, 2**64 - 1], [-1, 2**64])])
def test_what_a_range_holds(values: Any, held: list[float], refused: list[float]) -> None:
    for value in held:
        assert values.holds(value)
        values.check(value, "it")
    for value in refused:
        assert not values.holds(value)
        with pytest.raises(Unfit, match=r"^it is .*, not a (whole )?number"):
            values.check(value, "it")


@pytest.mark.parametrize(("values", "typed", "value"), [
    (number(0, 1), "0.25", 0.25), (at_least(0), "7", 7), (number(0, 1, words=("auto",)), "auto", "auto"),
    (number(0, 1), "1", 1.0)])
def test_what_is_typed(values: Any, typed: str, value: Any) -> None:
    assert values(typed) == value and type(values(typed)) is type(value)


@pytest.mark.parametrize(("values", "typed", "says"), [
    (number(0, 1), "20", "a number from 0 to 1 is needed, not 20; did you mean 0.2?"),
    (number(0, 1), "100", "a number from 0 to 1 is needed, not 100; did you mean 1?"),
    (number(0, 1), "101", "a number from 0 to 1 is needed, not 101"),
    (number(0, below=1), "1", "a number of at least 0 and below 1 is needed, not 1"),
    (number(0, 2), "20", "a number from 0 to 2 is needed, not 20"), (number(0, 1), "-1", "not -1"),
    (number(0, 1), "", "a number from 0 to 1 is needed, not nothing"), (number(0, 1), "x", "not x"),
    (at_least(1), "1.5", "a whole number of at least 1 is needed, not 1.5"), (at_least(0), "1e400", "not 1e400"),
    (number(0, 1, words=("auto",)), "atuo", "a number from 0 to 1 or auto is needed, not atuo")])
def test_what_is_typed_wrong(values: Any, typed: str, says: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError) as error:
        values(typed)
    assert str(error.value).endswith(says)


@pytest.mark.parametrize("wrong", [True, "0.5", None, [], 1.5])
def test_a_file_holds_the_right_type(wrong: Any) -> None:
    with pytest.raises(Unfit, match=r"it is .*, not a whole number of at least 0"):
        at_least(0).check(wrong, "it")
    number(0).check(1, "it")
    number(0).check(1.5, "it")
    with pytest.raises(Unfit):
        number(0).check(True, "it")
    number(0, 1, words=("auto",)).check("auto", "it")
    with pytest.raises(Unfit):
        number(0, 1, words=("auto",)).check("other", "it")


def test_texts_and_paths() -> None:
    assert text("a b") == "a b" and path("a/b") == Path("a/b")
    for value, says in (("", "something is needed, not an empty text"), (" \t", "something is needed"),
                        ("a\0b", "a text without NUL characters is needed")):
        with pytest.raises(argparse.ArgumentTypeError, match=says):
            path(value)
    is_text("ä", "it")
    for wrong in (3, None, "\ud800"):
        with pytest.raises(Unfit, match="it is .*, not a text"):
            is_text(wrong, "it")


def test_what_a_flag_may_have() -> None:
    for value in (None, True, 3, 0.5, "x", [1, "a", [None]], []):
        is_plain(value, "it")
    for wrong in (math.nan, math.inf, {}, (1,), [1, math.nan], ["\ud800"], b"x"):
        with pytest.raises(Unfit, match="it is .*, not "):
            is_plain(wrong, "it")


def test_nothing_or_something_lists_and_tables() -> None:
    maybe(is_text)(None, "it")
    with pytest.raises(Unfit, match="it is 3, not a text"):
        maybe(is_text)(3, "it")
    each(is_text)(["a", "b"], "it")
    each(is_text)((), "it")
    each(is_text, 2)(["a", "b"], "it")
    for value, says in (("ab", "it is 'ab', not a list"), (["a"], "it is a list of 1, not of 2"),
                        (["a", 3], r"it\[1\] is 3, not a text")):
        with pytest.raises(Unfit, match=says):
            each(is_text, 2)(value, "it")
    check = table({"a": is_text}, {"b": is_text})
    check({"a": "x", "c": 3}, "it")
    check({"a": "x", "b": "y"}, "")
    for given, name, says in (({}, "it", "it.a is missing"), ({}, "", "^a is missing"),
                              ([], "", "^it is a list, not a"), ([], "that", "^that is a list, not a table"),
                              ({"a": 3}, "it", "it.a is 3, not a text"),
                              ({"a": "x", "b": 3}, "", "^b is 3, not a text")):
        with pytest.raises(Unfit, match=says):
            check(given, name)


def test_accuracies_are_a_triangle_of_percents() -> None:
    accuracies([[0], [100, 50.0]], "it")
    for wrong, says in (([], "it is empty"), ([[1, 2]], r"it\[0\] has 2 accuracies, not 1"),
                        ([[1], [1]], r"it\[1\] has 1 accuracies, not 2"), ([1], r"it\[0\] is 1, not a list"),
                        ([[101]], r"it\[0\]\[0\] is")):
        with pytest.raises(Unfit, match=says):
            accuracies(wrong, "it")
