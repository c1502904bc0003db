"""Text between Python and C, without an agent: the readers on both sides accept it."""

import ctypes
import unittest

from tangram_engine import Refused, _abi, engine


class TextTest(unittest.TestCase):
    def test_a_long_message_is_cut_between_two_characters(self) -> None:
        kit, error = engine.Kit.__new__(engine.Kit), _abi.sized(_abi.Error)

        def refuse() -> int:
            raise Refused("x" * 498 + "\u00e4")  # the library has room for 499 bytes

        self.assertEqual(kit._guarded(refuse, why=ctypes.pointer(error)), _abi.REFUSED)
        self.assertEqual(error.message, b"x" * 498)

    def test_a_message_with_half_a_surrogate_is_told_all_the_same(self) -> None:
        kit, error = engine.Kit.__new__(engine.Kit), _abi.sized(_abi.Error)

        def refuse() -> int:
            raise Refused("no file \udcff")  # os.listdir returns such names for files that are not UTF-8

        self.assertEqual(kit._guarded(refuse, why=ctypes.pointer(error)), _abi.REFUSED)
        self.assertEqual(error.message, b"no file ?")

    def test_bytes_of_the_library_that_are_no_text_are_told(self) -> None:
        self.assertEqual(engine._text(b"cut \xe2\x82"), "cut \ufffd")


if __name__ == "__main__":
    unittest.main()
