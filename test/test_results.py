"""The page of results and the blocks of figures say what the JSON files say, and are the ones that they make."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import figures
import pytest
import result_files
import results

from benchmarks.common.claim import Claim, Direction
from benchmarks.common.estimate import Estimate, exact

AVX512 = "AVX512 (avx2 avx512f)"
FAST = Claim("speed, times the rival's", Estimate(2.0, 1.8, 2.3, 12, 12), "x", 1.5, paper="2.7 x")
SLOW = Claim("delay", Estimate(2.0, 1.8, 2.3, 12, 12), "ms", 2.0, Direction.AT_MOST, turn_s=5.0)
EQUAL = Claim("models that give the same bits", exact(5), "", 5)


def result(stem: str, instructions: str, *claims: Claim, arguments: tuple[str, ...] = ()) -> dict[str, Any]:
    machine = {"cpu": "A CPU", "instruction_set": instructions, "cores": 2, "gpu": None, "versions": {"torch": "2.11"}}
    rows = [{"rival": "ours", "peak_mb": 812.5, "cpu_busy": 0.5}, {"what": "no usage"}]
    told = [claim.as_json() for claim in claims]
    about = {"bench": "pipeline", "machine": machine, "arguments": arguments, "stem": stem, "has_picture": True}
    return {**about, "claims": told, "rows": rows}


@pytest.mark.parametrize("has_picture", [True, False])
def test_a_picture_is_linked_where_there_is_one(has_picture: bool) -> None:
    made = results.page([{**result("here", AVX512, FAST), "has_picture": has_picture}], {})
    assert "[here](here.json)" in made
    assert ("here.png" in made) is has_picture


def test_each_claim_has_its_interval_verdict_and_the_papers_figure() -> None:
    made = results.page([result("here", AVX512, FAST, SLOW, EQUAL)], {})
    assert "| speed, times the rival's | >= 1.5 | 2.7 x | 2 x (1.8 to 2.3, 12 turns) | holds |" in made
    assert "| models that give the same bits | >= 5 |  | 5  (counted) | holds |" in made
    assert "Claims that hold: 2. Claims that do not hold: 0. Unclear ones: 1." in made


def test_machines_stand_side_by_side_in_one_table() -> None:
    lowered = result("there", f"AVX2 ({AVX512}), oneDNN up to AVX2", FAST)
    made = results.page([result("here", AVX512, FAST), lowered], {})
    assert "| claim | goal | paper | AVX512 | verdict | AVX2 | verdict |" in made
    assert made.count("| speed, times the rival's |") == 1


def test_other_arguments_make_another_table() -> None:
    made = results.page([result("here", AVX512, FAST), result("more", AVX512, FAST, arguments=("--load", "3"))], {})
    assert "`scripts/run bench pipeline --load 3`" in made
    assert made.count("| speed, times the rival's |") == 2


def test_what_rivals_take_of_the_machine_is_shown() -> None:
    assert "| ours | 812 | 0.5 |" in results.page([result("here", AVX512, FAST)], {})


def test_notes_stand_in_their_benchmarks_section() -> None:
    made = results.page([result("here", AVX512, FAST)], {"pipeline": "Why it is so.\n", "long_runs": "## Long runs"})
    assert made.index("## The pipeline") < made.index("Why it is so.") < made.index("| claim |") < made.index("## Long")


def test_claims_that_change_between_runs_are_named() -> None:
    claims = {"pipeline": {"speed": ["holds", "unclear", "does not hold"], "bits": ["holds"] * 3}}
    machine, seconds = result("here", AVX512)["machine"], {"pipeline": [50]}
    repeated = {"machine": machine, "runs": 3, "claims": claims, "seconds": seconds}
    made = results.page([], {}, repeated)
    assert "1 of 2 claims changed" in made
    assert "| pipeline | speed | holds | unclear | does not hold |" in made


def test_a_file_of_another_form_is_refused(tmp_path: Path) -> None:
    (tmp_path / "old.json").write_text(json.dumps({"bench": "pipeline", "claims": [{"name": "speed", "holds": True}]}))
    with pytest.raises(SystemExit, match=r"old\.json is no result"):
        result_files.read_results(tmp_path)


def test_the_committed_page_is_made_from_the_committed_files() -> None:
    folder = result_files.FOLDER
    repeated_path = folder / result_files.REPEATED
    repeated = json.loads(repeated_path.read_text()) if repeated_path.exists() else None
    made = results.page(result_files.read_results(folder), results.read_notes(folder / "notes"), repeated)
    assert (folder / "README.md").read_text() == made, "scripts/results.py makes another page: run it, and commit that."


def test_committed_blocks_of_figures_are_made_from_the_committed_files() -> None:
    blocks = figures.blocks_of(result_files.read_results(result_files.FOLDER))
    shown = []
    for page in figures.pages_with_figures():
        text = page.read_text()
        assert figures.fill(text, blocks) == text, f"scripts/results.py makes another {page}: run it, and commit that."
        shown += [found[1] for found in figures.BLOCK.findall(text)]
    assert sorted(shown) == sorted(blocks), "each block stands on one page"


def test_a_block_is_filled_between_its_comments() -> None:
    page = "Before 1.\n<!-- figures: speeds -->\nold\n<!-- end of figures -->\nAfter 2.\n"
    filled = figures.fill(page, {"speeds": "| 3 |"})
    assert filled == "Before 1.\n<!-- figures: speeds -->\n| 3 |\n\n<!-- end of figures -->\nAfter 2.\n"
    assert figures.fill(filled, {"speeds": "| 3 |"}) == filled
    assert figures.without_blocks(filled).splitlines()[-1] == "After 2."
    assert figures.without_blocks(filled).count("\n") == filled.count("\n")
    with pytest.raises(SystemExit, match="no figures 'speeds'"):
        figures.fill(page, {"other": ""})


def test_figures_name_the_file_claim_or_row_that_they_lack() -> None:
    found = figures.Figures([result("here", AVX512, FAST)])
    assert found.interval("here", "speed") == "2.00 (1.80 to 2.30)"
    assert found.row("here", rival="ours")["peak_mb"] == 812.5
    with pytest.raises(SystemExit, match=r"there\.json is missing"):
        found.ratio("there", "speed")
    with pytest.raises(SystemExit, match="no claim 'delay'"):
        found.ratio("here", "delay")
    with pytest.raises(SystemExit, match="0 rows with"):
        found.row("here", rival="theirs")
