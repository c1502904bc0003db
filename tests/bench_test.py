"""The gates of the benches: which figures are judged, and that a missing, non-numeric or too large figure fails."""

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
    def passes(self, judged, found):
        return bench.judge(judged, found)["pass"]

    def test_a_figure_is_judged_by_its_goal(self):
        self.assertEqual([self.passes(WALL, summary(value, lost=0)) for value in (2, 2.01)], [True, False])
        self.assertEqual([self.passes(RATE, {"metrics": {"rate": rate}}) for rate in (0.9, 0.89)], [True, False])
        self.assertFalse(self.passes(WALL, summary(1, lost=1)))
        self.assertEqual([self.passes(WORK, summary(0, share=share)) for share in (0.95, 0.949)], [True, False])

    def test_a_peer_that_is_not_installed_is_not_judged(self):
        judged = bench.judge(BESIDE, summary(1, over_peer="not installed", share=1))
        self.assertTrue(judged["pass"])
        self.assertEqual([(g["found"], g["reached"]) for g in judged["gates"]][0], ("not installed", None))
        line = bench.table({"a": judged})[1]
        self.assertIn("not installed", line)
        self.assertTrue(line.endswith("not judged"), line)
        self.assertFalse(self.passes(BESIDE, summary(1, over_peer="not installed", share=0)), "the other gate is judged all the same")

    def test_a_peer_that_is_installed_is_judged(self):
        for found, reached in ((1.0, True), (0.99, False), ("failed: no wire", False)):
            self.assertEqual(self.passes(BESIDE, summary(1, over_peer=found, share=1)), reached, found)
        self.assertTrue(bench.table({"a": bench.judge(BESIDE, summary(1, over_peer="failed: no wire", share=1))})[1].endswith("MISSED"))

    def test_a_goal_that_is_documented_as_missed_is_not_judged_in_ci(self):
        known = bench.Bench("k", "", "", (bench.most("value", 1, missed=True), bench.most("lost", 0)))
        self.assertEqual([bench.judge(known, summary(2, lost=0), ci)["pass"] for ci in (True, False)], [True, False])
        self.assertFalse(bench.judge(known, summary(2, lost=1), ci=True)["pass"])

    def test_a_peer_without_a_figure_fails(self):
        for found in ({}, {"over_peer": None}, {"over_peer": True}, {"over_peer": float("nan")}):
            self.assertFalse(self.passes(BESIDE, summary(1, share=1, **found)), found)

    def test_words_are_no_figure_but_of_a_peer(self):
        self.assertFalse(self.passes(WORK, summary(0, share="not installed")))
        self.assertFalse(self.passes(WALL, summary(1, lost="not installed")))

    def test_transport_is_judged_beside_both_peers(self):
        beside = {g.figure: g.goal for g in bench.BENCHES["transport"].gates if g.peer}
        self.assertEqual(beside, {"over_nixl": 1, "over_mooncake": 1})

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


if __name__ == "__main__":
    unittest.main()
