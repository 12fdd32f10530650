"""Kernels that are forked: they compute, are told apart by their environment, and outlive nobody."""

import os
import time

import pytest
from jupyter_client.asynchronous import AsyncKernelClient
from nbclient import NotebookClient
from nbformat.v4 import new_code_cell, new_notebook

from creditaudit.bind import kernels

pytestmark = pytest.mark.skipif(not kernels.FORKS, reason="kernels are forked on Linux only")


def executed(*sources: str, **options) -> NotebookClient:
    cells = [new_code_cell(source) for source in sources]
    client = NotebookClient(new_notebook(cells=cells), kernel_manager_class=kernels.ForkedKernelManager, **options)
    client.execute()
    return client


def printed(client: NotebookClient) -> list[str]:
    return [cell.outputs[0].text.strip() for cell in client.nb.cells]


def test_kernels_share_what_is_imported_and_nothing_else(monkeypatch, tmp_path):
    monkeypatch.setenv("CREDITAUDIT_TEST", "first")
    look = "import os, sys; print(os.environ['CREDITAUDIT_TEST'], 'pandas' in sys.modules, 'torch' in sys.modules)"
    parents = "import os; print(os.getppid())"
    here = "import os; print(os.getcwd()); mark = 1"
    first = printed(executed(look, parents, here, resources={"metadata": {"path": str(tmp_path)}}))
    assert first[0] == "first True False" and first[2] == str(tmp_path)
    again = printed(executed(look, parents, "print('mark' in globals())"))
    assert again == [first[0], first[1], "False"]
    monkeypatch.setenv("CREDITAUDIT_TEST", "second")
    other = printed(executed(look, parents))
    assert other[0] == "second True False" and other[1] != first[1]


def test_a_kernel_ends_with_the_process_that_forked_it():
    nursery = kernels.Nursery(dict(os.environ))
    kernel = nursery.fork(["--log-level=CRITICAL", "--HistoryManager.hist_file=:memory:"], ".", dict(os.environ))
    assert kernel.poll() is None
    nursery.process.stdin.close()
    nursery.process.wait(10)
    deadline = time.monotonic() + 20
    while kernel.poll() is None and time.monotonic() < deadline:
        time.sleep(0.1)
    assert kernel.poll() is not None
    with pytest.raises((RuntimeError, OSError, ValueError)):
        nursery.fork([], ".", {})


def test_a_killed_kernel_is_noticed():
    client = NotebookClient(new_notebook(), kernel_manager_class=kernels.ForkedKernelManager)
    manager = client.create_kernel_manager()
    client.start_new_kernel()
    assert isinstance(client.start_new_kernel_client(), AsyncKernelClient)
    assert manager.provisioner.process.poll() is None
    manager.provisioner.process.kill()
    deadline = time.monotonic() + 20
    while manager.provisioner.process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.1)
    assert manager.provisioner.process.poll() is not None
