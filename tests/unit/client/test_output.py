"""infra.client.output: tables and JSON that say what there is and move no cursor."""

import json

import pytest

from infra.client.output import print_fields, print_json, print_table, shown, time_of


def test_a_table_in_a_pipe_cuts_and_wraps_nothing(capsys):
    long = "x" * 500
    print_table(("A", "B"), [(long, 1), ("short [red]y", None)])
    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert lines == [f"A{' ' * 499}  B", f"{long}  1", "short [red]y"]


def test_a_table_s_columns_stand_below_each_other_whatever_the_script(capsys):
    print_table(("A", "B"), [("é", 1), ("e\u0301", 2), ("\u6f22\u5b57", 3), ("abcd", 4)])
    assert capsys.readouterr().out == "A     B\né     1\ne\u0301     2\n\u6f22\u5b57  3\nabcd  4\n"


def test_a_table_without_rows_is_its_heading(capsys):
    print_table(("A", "B"), [])
    assert capsys.readouterr().out == "A  B\n"


def test_a_table_to_look_at_is_the_same_within_its_terminal(capsys, monkeypatch):
    rows = [("short [red]y", None), ("x", "y" * 20)]
    print_table(("A", "B"), rows)
    plain = capsys.readouterr().out
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.setenv("TERM", "dumb")
    print_table(("A", "B"), rows)
    assert capsys.readouterr().out == plain


def test_a_terminal_that_is_too_narrow_breaks_no_number_state_or_id_in_pieces(capsys, monkeypatch):
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setenv("COLUMNS", "20")
    print_table(("STATE", "ENDED", "COMMAND"), [("cancelled", "2026-11-29 23:37:13Z", "word " * 30)])
    heading, first, *rest = capsys.readouterr().out.splitlines()
    assert heading.split() == ["STATE", "ENDED", "COMMAND"]
    assert first.startswith("cancelled  2026-11-29 23:37:13Z  word")
    assert "".join((first, *rest)).count("word") == 30


@pytest.mark.parametrize("term", ["xterm", "dumb"])
def test_an_id_stays_whole_beside_others_of_its_column_that_are_too_long_to(capsys, monkeypatch, term):
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.setenv("TERM", term)
    monkeypatch.setenv("COLUMNS", "20")
    an_id = "0190c2a4-7b1e-7cc3-98a1-5f0d2e6b4a3c"
    print_table(("STATE", "NAME", "FOLDER"), [("done", an_id, "/"), ("done", "x" * 99, "y" * 99)])
    assert an_id in capsys.readouterr().out


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, ""),
        (0.1, "0.1"),
        (1e300, "1e+300"),
        (-0.0, "-0.0"),
        ({"a": [1, 2.0]}, '{"a":[1,2.0]}'),
        ("über", "über"),
        ("\x1b[2Jgone\n", "\\x1b[2Jgone\\n"),
    ],
)
def test_a_value_is_shown_as_people_read_it(value, text):
    assert shown(value) == text


def test_json_reads_back_to_the_same(capsys):
    value = {"a": [0.1, -0.0, 5e-324, 2**70, 1.0], "b": "é\x00"}
    print_json(value)
    (line,) = capsys.readouterr().out.splitlines()
    assert repr(json.loads(line)) == repr(value)


def test_what_is_unset_is_no_line(capsys):
    print_fields({"slug": "run", "error": None, "status": "done"})
    assert capsys.readouterr().out == "slug    run\nerror   \nstatus  done\n".replace("error   \n", "")


@pytest.mark.parametrize(
    ("at_ms", "text"),
    [(None, None), (0, "1970-01-01 00:00:00Z"), (2**53 - 1, "9007199254740991 ms")],
)
def test_a_time_is_in_utc(at_ms, text):
    assert time_of(at_ms) == text
