"""What a Telemetry tab shows of a layout, and without one."""

from infra.server.board import board
from runtime.telemetry.layout import parse_layout


def test_a_layout_is_shown_as_it_says_whatever_was_written():
    text = 'x = "step"\n[[panel]]\ny = ["loss", "eval_loss"]\nscale = "log"\n'
    assert board(text, []) == board(text, ["lr"]) == parse_layout(text)


def test_a_layout_that_names_no_x_is_drawn_against_the_place_in_the_run_even_when_step_is_written():
    (panel,) = board('[[panel]]\ny = "loss"\n', ["step", "loss"]).panels
    assert panel.x is None


def test_without_a_layout_there_is_a_panel_per_key_in_order_of_arrival_against_step():
    panels = board(None, ["loss", "step", "lr"]).panels
    assert [(panel.title, panel.y, panel.x) for panel in panels] == [
        ("loss", ("loss",), "step"),
        ("step", ("step",), "step"),
        ("lr", ("lr",), "step"),
    ]
    assert {(panel.scale, panel.min, panel.max, panel.rule, panel.wide) for panel in panels} == {
        ("linear", None, None, None, False)
    }


def test_without_a_layout_and_without_step_panels_are_drawn_against_the_place_in_the_run():
    assert [panel.x for panel in board(None, ["loss", "lr"]).panels] == [None, None]


def test_a_layout_without_a_panel_has_one_per_key_against_its_own_x():
    text = 'x = "epoch"\n[[stat]]\ny = "a"\n'
    shown = board(text, ["a", "step"])
    assert shown.stats == parse_layout(text).stats
    assert [(panel.title, panel.x) for panel in shown.panels] == [("a", "epoch"), ("step", "epoch")]
    assert [panel.x for panel in board("", ["a", "step"]).panels] == [None, None]
