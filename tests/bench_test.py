"""The gates of the benches: what is judged, and that a figure that is missing, no number or beyond its limit fails."""

import io
import unittest
from unittest import mock

import bench

WALL = bench.Bench("w", "", "", (bench.most("value", 2, wall=True), bench.most("lost", 0)))
RATE = bench.Bench("r", "", "", (bench.least("rate", 0.9, wall=True),))
BESIDE = bench.Bench("b", "", "", (bench.least("over_peer", 1, wall=True, peer=True), bench.least("share", 0.5)))
WORK = bench.Bench("w", "", "", (bench.least("share", 0.95),))


def summary(value, **metrics):
    return {"bench": "x", "value": value, "metrics": metrics}


class Judge(unittest.TestCase):
    def passes(self, judged, found, ci=False):
        return bench.judge(judged, found, ci)["pass"]

    def test_a_rate_by_the_clock_may_be_a_third_of_its_goal_in_ci(self):
        found = lambda rate, ci: bench.judge(RATE, {"metrics": {"rate": rate}}, ci)["pass"]
        self.assertEqual([found(0.31, True), found(0.29, True), found(0.91, False), found(0.89, False)], [True, False, True, False])

    def test_wall_seconds_gate_at_three_times_their_goal_in_ci_only(self):
        self.assertTrue(self.passes(WALL, summary(2, lost=0)))
        self.assertFalse(self.passes(WALL, summary(2.01, lost=0)))
        self.assertTrue(self.passes(WALL, summary(6, lost=0), ci=True))
        self.assertFalse(self.passes(WALL, summary(6.01, lost=0), ci=True))

    def test_what_depends_on_the_set_up_is_told_and_not_judged_in_ci(self):
        pages = bench.Bench("p", "", "", (bench.most("value", 2, wall=True, set_up=True),))
        self.assertFalse(self.passes(pages, summary(7)))
        self.assertTrue(self.passes(pages, summary(7), ci=True))
        self.assertFalse(self.passes(pages, {}, ci=True))
        self.assertIn("not judged", bench.table({"a": bench.judge(pages, summary(7), ci=True)})[1])

    def test_seconds_of_work_that_yields_are_told_in_ci_and_judged_in_full(self):
        yields = bench.Bench("y", "", "", (bench.most("value", 2, wall=True, alone=True), bench.most("processor_seconds", 4, wall=True)))
        self.assertFalse(self.passes(yields, summary(2.1, processor_seconds=3)))
        self.assertFalse(self.passes(yields, summary(1.9, processor_seconds=4.1)))
        self.assertTrue(self.passes(yields, summary(90, processor_seconds=11.9), ci=True))
        self.assertFalse(self.passes(yields, summary(1, processor_seconds=12.1), ci=True))
        self.assertFalse(self.passes(yields, summary(1), ci=True), "what is judged must be told")
        self.assertFalse(self.passes(yields, {"metrics": {"processor_seconds": 3}}, ci=True), "and so must what is told")

    def test_a_peer_that_is_not_installed_is_told_and_not_judged(self):
        for ci in (False, True):
            judged = bench.judge(BESIDE, summary(1, over_peer="not installed", share=1), ci)
            self.assertTrue(judged["pass"])
            self.assertEqual([(g["found"], g["limit"], g["reached"]) for g in judged["gates"]][0], ("not installed", None, None))
            line = bench.table({"a": judged})[1]
            self.assertIn("not installed", line)
            self.assertTrue(line.endswith("not judged"), line)
            self.assertFalse(self.passes(BESIDE, summary(1, over_peer="not installed", share=0), ci), "the other gate is judged all the same")

    def test_a_peer_that_is_installed_is_judged_in_full_and_told_in_ci(self):
        for found, full in ((1.0, True), (0.99, False), ("failed: no wire", False)):
            self.assertEqual(self.passes(BESIDE, summary(1, over_peer=found, share=1)), full, found)
            self.assertTrue(self.passes(BESIDE, summary(1, over_peer=found, share=1), ci=True), found)
        self.assertTrue(bench.table({"a": bench.judge(BESIDE, summary(1, over_peer="failed: no wire", share=1))})[1].endswith("MISSED"))

    def test_a_peer_of_which_nothing_is_said_fails(self):
        for ci in (False, True):
            for found in ({}, {"over_peer": None}, {"over_peer": True}, {"over_peer": float("nan")}):
                self.assertFalse(self.passes(BESIDE, summary(1, share=1, **found), ci), found)

    def test_words_are_no_figure_but_of_a_peer(self):
        self.assertFalse(self.passes(WORK, summary(0, share="not installed")))
        self.assertFalse(self.passes(WALL, summary(1, lost="not installed"), ci=True))

    def test_transport_is_judged_beside_both_peers(self):
        beside = {g.figure: g.goal for g in bench.BENCHES["transport"].gates if g.peer}
        self.assertEqual(beside, {"over_nixl": 1, "over_mooncake": 1})

    def test_counts_and_work_gate_alike_everywhere(self):
        for ci in (False, True):
            self.assertFalse(self.passes(WALL, summary(1, lost=1), ci))
            self.assertTrue(self.passes(WORK, summary(0, share=0.95), ci))
            self.assertFalse(self.passes(WORK, summary(0, share=0.949), ci))

    def test_a_figure_that_is_missing_or_no_number_fails(self):
        for found in ({}, {"share": None}, {"share": "1"}, {"share": True}, {"share": float("nan")}, {"share": float("inf")}):
            self.assertFalse(self.passes(WORK, summary(0, **found)), found)
        self.assertFalse(self.passes(WORK, {"bench": "x", "value": 1}))

    def test_every_bench_has_a_gate_and_eplb_all_of_its_goals(self):
        for name, one in bench.BENCHES.items():
            self.assertTrue(one.gates, name)
        self.assertEqual(len(bench.BENCHES["eplb"].gates), 4 * 5)

    def test_the_table_names_what_was_missed(self):
        lines = bench.table({"a": bench.judge(WORK, summary(0, share=0.5)), "b": bench.judge(WORK, summary(0)), "c": None})
        self.assertEqual([line.endswith("MISSED") for line in lines], [False, True, True, True])
        self.assertIn("missing", lines[2])


class Run(unittest.TestCase):
    def run_script(self, script, ci=False):
        one = bench.Bench("x", "-f /dev/null -n", f"{script}", (bench.most("value", 1),))
        out = io.StringIO()
        with mock.patch.object(bench, "BENCHES", {"x": one}), mock.patch.object(bench.subprocess, "run") as made:
            made.return_value.returncode = 0
            return bench.run("x", ci, out), out.getvalue().splitlines()

    def test_lines_are_passed_on_and_the_last_is_judged(self):
        found, lines = self.run_script("printf {\"a\":1}\\n{\"value\":2}\\n")
        self.assertEqual(lines[0], '{"a":1}')
        self.assertFalse(found["pass"])
        self.assertIn('"pass": false', lines[1])

    def test_a_bench_that_fails_or_says_nothing_has_no_summary(self):
        self.assertIsNone(self.run_script("false")[0])
        self.assertIsNone(self.run_script("true")[0])

    def test_of_the_long_ones_each_has_its_day(self):
        benches = {"a": bench.Bench("", "", "", ()), "b": bench.Bench("", "", "", (), by_day=True), "c": bench.Bench("", "", "", (), by_day=True)}
        with mock.patch.object(bench, "BENCHES", benches):
            days = [bench.todays(list(benches), date, False) for date in ("2026-11-24", "2026-11-25")]
            self.assertEqual(sorted(days), [["a", "b"], ["a", "c"]])
            self.assertEqual(bench.todays(["a"], "2026-11-24", False), ["a"])
            self.assertEqual(bench.todays(list(benches), "2026-11-24", True), ["a", "b", "c"])


if __name__ == "__main__":
    unittest.main()
