"""Names shared with the engine."""

from runtime.engine_api import Receipt, parse_metrics


def test_receipt_survives_the_wire_and_others_do_not() -> None:
    """Only a receipt of exactly this shape is read."""
    receipt = Receipt(300, 288, 0, 288, "pulled", 1.5, 0.1, 0.2, 0.3, None)
    raw = receipt.to_dict()
    assert Receipt.from_dict(raw) == receipt
    changes: list[dict[str, object]] = [
        {"pulled_tokens": -1},
        {"reason": "because"},
        {"reason": []},
        {"arrival_unix_s": None},
        {"finished_ms": "soon"},
        {"more": 1},
    ]
    for change in changes:
        assert Receipt.from_dict(raw | change) is None
    assert Receipt.from_dict(None) is None


def test_stages_of_a_receipt_add_up() -> None:
    """Queue, pull and compute fill the time from arrival to end; what is unknown is None."""
    pulled = Receipt(300, 288, 0, 288, "pulled", 1.5, 1.0, 2.5, 3.0, 7.0)
    assert pulled.stages_ms() == {"queue": 1.0, "pull": 2.0, "compute": 4.0}
    cold = Receipt(0, 0, 0, 0, "none_offered", 1.5, None, None, 3.0, 7.0)
    assert cold.stages_ms() == {"queue": 3.0, "pull": None, "compute": 4.0}
    assert set(Receipt(0, 0, 0, 0, "spent").stages_ms().values()) == {None}


def test_metrics_are_summed_over_labels() -> None:
    """Two engines behind one page add up; what the page lacks is zero."""
    page = '# HELP a text\na_total{engine="0"} 2.0\na_total{engine="1"} 3.5\nb 1\na_total_x 9\n'
    assert parse_metrics(page, ["a_total", "c"]) == {"a_total": 5.5, "c": 0.0}
