"""What a Telemetry tab shows of a layout, and without one."""

from infra.server.board import Board, Panel, Stat, board_of

PAGE = {
    "x": "step",
    "panels": [
        {"title": "Loss", "y": ["loss", "eval_loss"], "scale": "log"},
        {"title": "F1", "y": ["f1"], "min": 0.9, "max": 1.0, "rule": 0.95},
        {"y": "recall", "wide": True, "x": "epoch"},
    ],
    "stats": [{"title": "Samples/s", "y": "speed"}, {"y": ["a", "b"], "reduce": "max"}],
}


def test_a_layout_is_shown_as_it_says_with_the_pages_defaults():
    assert board_of(PAGE, ["loss"]) == Board(
        (
            Panel(title="Loss", keys=("loss", "eval_loss"), x="step", scale="log"),
            Panel(title="F1", keys=("f1",), x="step", minimum=0.9, maximum=1.0, rule=0.95),
            Panel(title="recall", keys=("recall",), x="epoch", wide=True),
        ),
        (
            Stat(title="Samples/s", keys=("speed",), reduce="last"),
            Stat(title="a, b", keys=("a", "b"), reduce="max"),
        ),
        laid_out=True,
    )


def test_a_layout_that_names_no_x_is_drawn_against_the_place_in_the_run_even_when_step_is_written():
    (panel,) = board_of({"x": None, "panels": [{"y": "loss"}], "stats": []}, ["step", "loss"]).panels
    assert panel.x is None


def test_without_a_layout_there_is_a_panel_per_key_in_order_of_arrival_against_step():
    board = board_of(None, ["loss", "step", "lr"])
    assert board == Board(
        tuple(Panel(title=key, keys=(key,), x="step") for key in ("loss", "step", "lr")), (), laid_out=False
    )


def test_without_a_layout_and_without_step_panels_are_drawn_against_the_place_in_the_run():
    assert [panel.x for panel in board_of(None, ["loss", "lr"]).panels] == [None, None]


def test_a_layout_without_a_panel_shows_none():
    assert board_of({"stats": [{"y": "a"}]}, ["a", "b"]).panels == ()
