"""Writes tests/io/files: what the reference implementation of safetensors (0.8.0), PyTorch and NumPy write.

    python3 tests/io/expected/files.py            needs numpy, torch and safetensors
"""
import io
import json
import os
import struct
import zipfile

import numpy as np
import torch
from safetensors.torch import save_file

folder = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "files")
os.makedirs(folder, exist_ok=True)


def path(name):
    return os.path.join(folder, name)


def raw(name, header, data=b""):
    """A file that the reference writes for nobody, but reads."""
    text = header if isinstance(header, bytes) else json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    with open(path(name), "wb") as out:
        out.write(struct.pack("<Q", len(text)) + text + data)


# Every element type; ranks 0 to 4; nothing; two of a size in the order of names.
torch_types = dict(f64=torch.float64, f32=torch.float32, f16=torch.float16, bf16=torch.bfloat16, i64=torch.int64, i32=torch.int32,
                   i16=torch.int16, i8=torch.int8, u8=torch.uint8, bool=torch.bool)
tensors = {key: torch.tensor([[0, 1, 2], [3, 100, 1]]).to(kind) for key, kind in torch_types.items()}
tensors["scalar"] = torch.tensor(2.5)
tensors["empty"] = torch.zeros(3, 0, 2)
tensors["rank_4"] = torch.arange(24, dtype=torch.int32).reshape(2, 3, 1, 4)
save_file(tensors, path("all_types.safetensors"), metadata={"format": "pt"})

# PyTorch's names and shapes.
torch.manual_seed(1)
net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.ReLU(), torch.nn.Linear(4, 2))
state = {key: (torch.arange(value.numel()).reshape(value.shape) + 10 * k).to(value.dtype) for k, (key, value) in enumerate(net.state_dict().items())}
net.load_state_dict(state)
save_file(net.state_dict(), path("torch_net.safetensors"), metadata={"format": "pt"})

save_file({'a"\\/\n\x01\x7fé€😀': torch.tensor([7], dtype=torch.int32), "": torch.tensor([8], dtype=torch.int32)}, path("names.safetensors"),
          metadata={"\t": "\b\f\r\"\u2028"})
save_file({}, path("nothing.safetensors"))

# Types that situ has not, more axes than it has, elements that are not aligned, bools that are neither 0 nor 1.
raw("foreign.safetensors", {
    "c64": {"dtype": "C64", "shape": [1], "data_offsets": [0, 8]},
    "f4": {"dtype": "F4", "shape": [3, 2], "data_offsets": [8, 11]},
    "later": {"dtype": "Q7", "shape": [5], "data_offsets": [11, 13], "more": [1, {"a": [None, True, -1.5e3, "x"]}]},
    "axes": {"dtype": "U8", "shape": [1] * 9, "data_offsets": [13, 14]},
    "odd": {"dtype": "F32", "shape": [2], "data_offsets": [14, 22]},
    "bools": {"dtype": "BOOL", "shape": [3], "data_offsets": [22, 25]},
}, bytes(14) + struct.pack("<2f", 1.5, -2) + bytes([0, 2, 255]))


def npy(array):
    out = io.BytesIO()
    np.lib.format.write_array(out, np.asanyarray(array))
    return out.getvalue()


class Pipe(io.RawIOBase):
    """Cannot seek: zipfile then writes sizes behind the data."""
    def __init__(self, out):
        self.out = out
    def writable(self):
        return True
    def write(self, data):
        return self.out.write(data)


def npz(name, arrays, method=zipfile.ZIP_STORED, pipe=False, comment=b""):
    with open(path(name), "wb") as out:
        with zipfile.ZipFile(Pipe(out) if pipe else out, "w", allowZip64=True) as archive:
            archive.comment = comment
            for key, array in arrays.items():
                info = zipfile.ZipInfo(key + ".npy", (2026, 1, 1, 0, 0, 0))
                info.compress_type = method
                with archive.open(info, "w", force_zip64=True) as member:  # as numpy.savez does
                    member.write(npy(array))


arrays = dict(x=np.arange(6, dtype=np.float32).reshape(2, 3), n=np.array([1, -2, 3]), f=np.asfortranarray(np.arange(6.0).reshape(2, 3)), e=np.zeros((0, 3)),
              b=np.array(True), long=(np.arange(40000) * 7 % 256).astype(np.uint8))
arrays["é/ü"] = np.array([2.5])
npz("stored.npz", {key: arrays[key] for key in arrays if key != "long"})
npz("deflated.npz", {key: arrays[key] for key in ("x", "f", "long")}, zipfile.ZIP_DEFLATED)
npz("piped.npz", {"x": arrays["x"]}, pipe=True, comment=b"a comment")
npz("bzip2.npz", {"x": arrays["x"]}, zipfile.ZIP_BZIP2)

# zip64 with everything in its extra fields, as of archives beyond 4 GiB.
data = npy(arrays["x"])
crc = zipfile.crc32(data)
extra = struct.pack("<HHQQ", 1, 16, len(data), len(data))
local = struct.pack("<IHHHHHIIIHH", 0x04034B50, 45, 0, 0, 0, 0x5C21, crc, 0xFFFFFFFF, 0xFFFFFFFF, 5, len(extra)) + b"x.npy" + extra + data
extra = struct.pack("<HHQQQ", 1, 24, len(data), len(data), 0)
central = struct.pack("<IHHHHHHIIIHHHHHII", 0x02014B50, 45, 45, 0, 0, 0, 0x5C21, crc, 0xFFFFFFFF, 0xFFFFFFFF, 5, len(extra), 0, 0, 0, 0, 0xFFFFFFFF) + b"x.npy" + extra
record = struct.pack("<IQHHIIQQQQ", 0x06064B50, 44, 45, 45, 0, 0, 1, 1, len(central), len(local))
locator = struct.pack("<IIQI", 0x07064B50, 0, len(local) + len(central), 1)
with open(path("zip64.npz"), "wb") as out:
    out.write(local + central + record + locator + struct.pack("<IHHHHIIH", 0x06054B50, 0, 0, 0xFFFF, 0xFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0))
