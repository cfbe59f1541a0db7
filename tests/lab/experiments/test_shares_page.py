"""The results page is written from the results, and says how to get them again."""

from __future__ import annotations

import json

from bursar_lab.experiments.shares.page import write_page


def test_the_page_has_what_was_found_and_leaves_out_what_was_not(tmp_path):
    (tmp_path / "shares-allocation.json").write_text(json.dumps({"table": "all four at 10:10:30:50"}))
    (tmp_path / "shares-figure-3.png").write_bytes(b"")
    text = write_page(tmp_path).read_text()
    assert "all four at 10:10:30:50" in text
    assert "bursar experiment shares-allocation" in text and "shares-redistribution" not in text
    assert "(shares-figure-3.png)" in text and "(shares-figure-4.png)" not in text
