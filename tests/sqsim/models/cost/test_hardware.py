# SPDX-License-Identifier: Apache-2.0
import pytest

from sqsim.errors import InputError
from sqsim.models.cost.hardware import GIB, HARDWARE, hardware


@pytest.mark.parametrize("gpu", HARDWARE.values(), ids=lambda gpu: gpu.name)
def test_every_figure_is_positive_and_has_a_source(gpu):
    figures = ("memory_bytes", "bandwidth", "link_bandwidth")
    assert all(getattr(gpu, figure) > 0 for figure in figures)
    assert gpu.context_bytes >= 0
    assert all(peak > 0 for peak in gpu.flops.values())
    assert set(gpu.sources) == {*figures, "context_bytes", "flops"}
    assert all(gpu.sources.values())


def test_the_runtime_reports_less_memory_than_the_name_says():
    assert 78 * GIB < hardware("h100-sxm").memory_bytes < 80e9 * 1.0738  # below 80 GiB
    assert hardware("h200-sxm").memory_bytes > hardware("h100-sxm").memory_bytes


def test_peak_falls_back_to_sixteen_bits():
    a100 = hardware("a100-sxm-80gb")
    assert a100.peak("fp8_e4m3") == a100.peak("bfloat16") == 312e12


def test_an_unknown_gpu_is_refused_with_the_list():
    with pytest.raises(InputError, match=r"'h100' is unknown.*h100-sxm.*cpu"):
        hardware("h100")
