"""The command line, without vLLM."""

import contextlib
import io
import pathlib
import re
import unittest

from tangram_vllm import main, zygote

GIVEN = ["--agent-socket=a", "--token-file=t", "--tls-ca=ca", "--tls-cert=cert", "--tls-key=key"]

# Flags that the operator gives an engine: users may not give them in spec.engine.args (api/v1alpha2, Engine), in any
# spelling.
OWNED = ["agent-socket", "token-file", "device", "mesh-listen", "serve-listen", "advertise", "tls-ca", "tls-cert", "tls-key", "insecure-fabric"]


class FlagsTest(unittest.TestCase):
    def test_takes_what_the_operator_gives(self) -> None:
        args = main.flags().parse_args([*GIVEN, "--device=1", "--insecure-fabric"])
        self.assertEqual((args.device, args.insecure_fabric, args.tls_ca), (1, True, "ca"))

    def test_refuses_more_tokens_than_a_step_takes(self) -> None:
        header = pathlib.Path(__file__).parents[2] / "engine" / "turn" / "control.h"
        most = int(re.findall(r"kMostRows = (\d+);", header.read_text())[0])
        self.assertEqual(main.flags().parse_args([*GIVEN, f"--max-batch-tokens={most}"]).max_batch_tokens, most)
        for given in (most + 1, 0):
            said = io.StringIO()
            with contextlib.redirect_stderr(said), self.assertRaises(SystemExit) as end:
                main.flags().parse_args([*GIVEN, f"--max-batch-tokens={given}"])
            self.assertEqual(end.exception.code, 2)
            self.assertIn(f"argument --max-batch-tokens: {given} is not between 1 and {most}", said.getvalue())

    def test_refuses_abbreviations_of_what_the_operator_owns(self) -> None:
        short = [f"--{name[:n]}" for name in OWNED for n in range(1, len(name)) if name[:n] not in OWNED]
        self.assertLessEqual({"--insecure", "--dev", "--tls-ce"}, set(short))
        self.assertIs(zygote.program, main, "both programs have one command line")
        for flag in short:
            for given in ([flag], [flag, "1"], [f"{flag}=1"]):
                said = io.StringIO()
                with self.subTest(given=given):
                    with contextlib.redirect_stderr(said), self.assertRaises(SystemExit) as end:
                        main.flags().parse_args([*GIVEN, *given])
                    self.assertEqual(end.exception.code, 2)
                    self.assertIn("unrecognized arguments", said.getvalue())


if __name__ == "__main__":
    unittest.main()
