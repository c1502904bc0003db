"""Views over memory of this process: bytes, numbers, DLPack."""

import ctypes
import gc
import struct
import subprocess
import sys
import unittest
import weakref

from tangram_client import DType, InvalidError, View, _dlpack
from tangram_client.views import Exports

try:
    import numpy
except ImportError:
    numpy = None


def view(data: bytes, dtype: DType, shape: tuple[int, ...], readonly: bool = True) -> View:
    memory = (ctypes.c_ubyte * len(data)).from_buffer_copy(data)
    return View(memory, dtype, shape, readonly)


class Gpu(unittest.TestCase):
    def test_memory_that_python_does_not_reach_is_refused(self):
        with self.assertRaisesRegex(InvalidError, "memory of platform cuda, of which there are no views"):
            Exports("cuda").memory(4096, 8)


class Bytes(unittest.TestCase):
    def test_bytes_and_numbers(self):
        v = view(struct.pack("6f", *range(6)), DType.F32, (2, 3))
        self.assertEqual(v.nbytes, 24)
        self.assertEqual(bytes(v.data), struct.pack("6f", *range(6)))
        self.assertEqual(v.numbers().tolist(), [[0, 1, 2], [3, 4, 5]])
        self.assertEqual(repr(v), "View(F32, (2, 3), read-only)")
        self.assertEqual(view(b"\x80\x3f", DType.BF16, (1,)).numbers().tolist(), [0x3F80])

    def test_readonly(self):
        with self.assertRaises(TypeError):
            view(b"abc", DType.U8, (3,)).data[0] = 1
        v = view(b"abc", DType.U8, (3,), readonly=False)
        v.data[0] = ord("x")
        self.assertEqual(bytes(v.data), b"xbc")

    def test_a_shape_of_other_bytes_is_refused(self):
        with self.assertRaisesRegex(ValueError, "takes 8 bytes, there are 4"):
            view(b"abcd", DType.F32, (2,))
        with self.assertRaisesRegex(TypeError, "MXFP4"):
            view(b"abcd", DType.MXFP4, (8,))

    def test_exports_know_what_is_still_held(self):
        memory, exports = ctypes.create_string_buffer(b"abcd", 4), Exports()
        v = View(exports.memory(ctypes.addressof(memory), 4), DType.U8, (4,), True)
        kept = v.data[1:3]
        del v
        self.assertEqual((len(exports), bytes(kept)), (1, b"bc"))
        del kept
        self.assertEqual(len(exports), 0)


class DLPack(unittest.TestCase):
    def test_other_devices_and_copies_are_refused(self):
        v = view(b"abcd", DType.U8, (4,))
        self.assertEqual(v.__dlpack_device__(), (1, 0))
        for wrong in ({"copy": True}, {"dl_device": (2, 0)}, {"stream": 1}):
            with self.assertRaises(BufferError):
                v.__dlpack__(**wrong)

    def test_a_capsule_that_nobody_takes_frees_what_it_holds(self):
        for version in (None, (1, 0)):
            v = view(b"abcd", DType.U8, (4,))
            memory = weakref.ref(v._memory)
            capsule = v.__dlpack__(max_version=version)
            del v
            gc.collect()
            self.assertIsNotNone(memory())
            self.assertEqual(len(_dlpack._held), 1)
            del capsule
            gc.collect()
            self.assertIsNone(memory())
            self.assertEqual(len(_dlpack._held), 0)

    @unittest.skipIf(numpy is None, "numpy is not installed")
    def test_numpy(self):
        cases = [
            (DType.F32, (2, 3), struct.pack("6f", *range(6)), "float32"),
            (DType.F16, (3,), struct.pack("3e", 1, 2, 3), "float16"),
            (DType.U8, (2, 2, 1), b"abcd", "uint8"),
            (DType.U8, (), b"a", "uint8"),
            (DType.F32, (0, 3), b"", "float32"),
        ]
        for dtype, shape, data, name in cases:
            with self.subTest(dtype=dtype, shape=shape):
                v = view(data, dtype, shape)
                memory = weakref.ref(v._memory)
                array = numpy.from_dlpack(v)
                self.assertEqual((array.dtype.name, array.shape, array.tobytes()), (name, shape, data))
                self.assertFalse(array.flags.writeable)
                if data:
                    self.assertEqual(array.ctypes.data, v.address)
                del v
                gc.collect()
                self.assertIsNotNone(memory())
                del array
                gc.collect()
                self.assertIsNone(memory())

    @unittest.skipIf(numpy is None, "numpy is not installed")
    def test_a_tensor_may_outlive_the_package(self):
        code = "import sys, ctypes, numpy, tangram_client as t; m = (ctypes.c_ubyte * 4)(); " \
               "sys.kept = numpy.from_dlpack(t.View(m, t.DType.U8, (4,), True)), t.View(m, t.DType.U8, (4,), True).__dlpack__()"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
        self.assertEqual((done.returncode, done.stderr), (0, ""))

    @unittest.skipIf(numpy is None, "numpy is not installed")
    def test_numpy_writes_where_it_may(self):
        v = view(b"abcd", DType.U8, (4,), readonly=False)
        numpy.from_dlpack(v)[1] = ord("x")
        self.assertEqual(bytes(v.data), b"axcd")


if __name__ == "__main__":
    unittest.main()
