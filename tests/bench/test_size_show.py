"""The table and the figure of the bench of sizes are made from its file alone."""

import xml.dom.minidom

from gradleak.bench.size_show import above, figure, needed, table

CLIENT = {
    "parameters": 1_540_000_000, "weight_bytes": 3 * 10**9, "update_bytes": 6 * 10**9, "anonymous": 9 * 10**9,
    "processor_seconds": 50.0,
}  # fmt: skip
ATTACK = {
    "anonymous": 7 * 10**9, "processor_seconds": 80.4, "whole": 1, "certified": 1, "tokens": 9, "tokens_found": 8,
    "tokens_wrong": 0,
}  # fmt: skip
KEPT = {
    "nothing": {"anonymous": 3 * 10**8},
    "cells": [
        {"model": "qwen2-1.5b", "batch": 1, "way": "exact", "client": CLIENT, "attack": ATTACK},
        {"model": "llama-3-8b", "batch": 8, "way": "lora-bag", "client": {"refused": "too large"}, "attack": {}},
    ],
}


def test_a_line_says_what_was_measured():
    header, _, line, refused = table(KEPT).splitlines()
    assert "| 3.00 + 6.00 GB | 8.70 GB | 6.70 GB | 74% | 77% | 50 + 80 s | 1 of 1 sentences, 1 certified |" in line
    assert refused.endswith("| refused: too large |")
    assert len({row.count("|") for row in (header, line, refused)}) == 1
    assert needed(CLIENT) == 9 * 10**9
    assert above(KEPT, {"anonymous": 5}) == 0


def test_the_figure_is_a_picture_with_a_point_for_each():
    drawn = xml.dom.minidom.parseString(figure(KEPT))
    assert len(drawn.getElementsByTagName("circle")) == 2 + 4  # one measured cell in two panels, and the legend
