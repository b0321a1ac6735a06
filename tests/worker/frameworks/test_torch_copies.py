"""Copies to and from a GPU, on a device that stands for one: what it is to copy comes when it is waited for."""

import numpy as np
import pytest

from globalstep.worker.frameworks.torch_module import DeviceCopies, TorchModule

torch = pytest.importorskip("torch", reason="PyTorch is not installed; `pip install torch==2.13.0` runs these tests")


class FakeDevice(DeviceCopies):
    """Serves the CPU's tensors. A copy to the host is NaN until it is waited for, as page-locked memory is anything."""

    def __init__(self):
        super().__init__(torch)
        self.done = []

    def serves(self, tensor):
        return True

    def begin(self, tensor):
        source, host = tensor.detach().clone(), self._page_locked(tensor).fill_(torch.nan)
        number = len(self.done)
        self.done.append(None)

        def arrived():
            host.copy_(source)
            self.done[number] = host
            return host

        return arrived

    def _page_locked(self, tensor):
        return torch.empty(tensor.shape, dtype=tensor.dtype)


def loss(module, x):
    return (module(x) ** 2).sum()


def evaluated(copies, dtype=torch.float32):
    torch.manual_seed(0)
    model = TorchModule(torch, torch.nn.Linear(3, 2).to(dtype))
    if copies is not None:
        model.copies = copies
    values = [np.full((2, 3), 0.3, np.float32), np.ones(2, np.float32)]
    for value in values:
        value.flags.writeable = False
    x = torch.arange(6.0).reshape(2, 3).to(dtype)
    return model.evaluate(lambda module: loss(module, x), True, values, (0, 1))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_step_on_a_device_is_that_of_the_cpu(dtype):
    device = FakeDevice()
    here, there = evaluated(None, dtype), evaluated(device, dtype)
    assert len(device.done) == 2
    assert there.loss == here.loss
    for mine, other in zip(here.gradients, there.gradients, strict=True):
        assert other.dtype == np.float32
        assert np.array_equal(mine, other)


def test_all_copies_are_begun_before_one_is_waited_for():
    device, begun = FakeDevice(), []
    begin = device.begin

    def noted(tensor):
        begun.append(sum(host is not None for host in device.done))
        return begin(tensor)

    device.begin = noted
    evaluated(device)
    assert begun == [0, 0]
    assert all(host is not None for host in device.done)


def test_the_cpu_needs_no_copies():
    assert not DeviceCopies(torch).serves(torch.zeros(1))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
def test_a_gpu_gets_and_gives_what_it_is_to():
    copies, tensor = DeviceCopies(torch), torch.zeros(3, device="cuda")
    copies.put(tensor, np.arange(3, dtype=np.float32))
    assert copies.begin(tensor + 1)().tolist() == [1.0, 2.0, 3.0]
