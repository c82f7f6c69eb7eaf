"""Which GPU is meant where a machine has several: the one that CUDA calls device 0."""

import shutil
import stat
import subprocess

import pytest

from tvm_sparse.target import gpu_driver
from tvm_sparse.target.gpu_driver import gpu_arch, gpu_id, gpu_property
from tvm_sparse.target.resolve import resolve_target

# nvidia-smi orders GPUs by PCI address. CUDA's first, the fastest, is the second here.
GPUS = """
00000000:1A:00.0, NVIDIA T4, 7.5, GPU-aaaa
00000001:3B:00.0, NVIDIA A10G, 8.6, GPU-bbbb
"""
FIELDS = ("pci.bus_id", "name", "compute_cap", "uuid")
NVIDIA_SMI = """#!/bin/sh
fields=$(echo "$1" | sed 's/--query-gpu=//; s/pci.bus_id/1/; s/name/2/; s/compute_cap/3/; s/uuid/4/')
echo '{gpus}' | /usr/bin/awk -F', ' -v OFS=', ' -v fields="$fields" '
  {{ split(fields, each, ","); print $each[1], $each[2] }}'
"""
# A driver of which device 0 is given when it is made; without an address it has no device.
DRIVER = """
#include <string.h>
extern "C" {{
int cuInit(unsigned flags) {{ return {address}[0] ? 0 : 100; }}
int cuDeviceGet(int* device, int ordinal) {{ *device = 7; return 0; }}
int cuDeviceGetPCIBusId(char* text, int length, int device) {{ strncpy(text, {address}, length); return device != 7; }}
int cuDeviceGetAttribute(int* value, int attribute, int device) {{ *value = attribute == 16 ? {count} : 0; return 0; }}
}}
"""


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """Makes a machine of `GPUS`, with CUDA's device 0 at an address, or without CUDA."""
    if shutil.which("g++") is None:
        pytest.skip("needs g++ to make a driver")
    clear = (gpu_property.cache_clear, gpu_driver._device_0.cache_clear)

    def make(address, count=80):
        tool = tmp_path / "nvidia-smi"
        tool.write_text(NVIDIA_SMI.format(gpus=GPUS.strip()))
        tool.chmod(tool.stat().st_mode | stat.S_IXUSR)
        text = "" if address is None else DRIVER.format(address=f'"{address}"', count=count)
        (tmp_path / "driver.cc").write_text(text)
        library = tmp_path / "libcuda.so.1"
        subprocess.run(["g++", "-shared", "-fPIC", "-o", library, tmp_path / "driver.cc"], check=True)
        if address is None:
            # No library at all: what is found is not one.
            library.write_text("")
        monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
        monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
        for each in clear:
            each()

    yield make
    for each in clear:
        each()


@pytest.mark.parametrize(
    ("address", "found"),
    [
        ("0001:3b:00.0", ("NVIDIA A10G", "sm_86", "GPU-bbbb")),
        ("0000:1A:00.0", ("NVIDIA T4", "sm_75", "GPU-aaaa")),
        (None, ("NVIDIA T4", "sm_75", "GPU-aaaa")),
        ("", (None, None, "gpu-0")),
        ("0002:00:00.0", (None, None, "gpu-0")),
    ],
)
def test_it_is_the_one_that_cuda_means(machine, address, found, monkeypatch):
    """Without CUDA nvidia-smi's first; none where CUDA sees none, such as one that was hidden."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    machine(address)
    assert (gpu_property("name"), gpu_arch(), gpu_id()) == found


def test_a_target_names_a_card_that_is_not_its_architecture_s_first(machine):
    """So that a kernel can be made again elsewhere; a target with an architecture says all itself."""
    machine("0001:3b:00.0", count=80)
    assert dict(resolve_target("cuda").attrs)["model"] == "NVIDIA A10G, 80 multiprocessors"
    assert "model" not in resolve_target({"kind": "cuda", "arch": "sm_86"}).attrs
    assert resolve_target({"kind": "cuda", "model": "NVIDIA A40"}).attrs["model"] == "NVIDIA A40"
