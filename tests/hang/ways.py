"""Ways to train that came last. Each is made after init_process_group, and gives the function of one step, which takes its number."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable

import torch
import torch.distributed as dist

RANK, WORLD = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
Step = Callable[[int], None]


def _layers() -> torch.nn.Sequential:
    return torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(3)])


def context() -> Step:
    """Ring attention: keys and values go round, forward and backward, then the gradients over all."""
    block, other, gradients = torch.zeros(2, 2048), torch.zeros(2, 2048), torch.zeros(4096)

    def step(_: int) -> None:
        for way in (1, -1):
            for _ in range(WORLD - 1):
                operations = [
                    dist.P2POp(dist.isend, block, (RANK + way) % WORLD), dist.P2POp(dist.irecv, other, (RANK - way) % WORLD),
                ]  # fmt: skip
                for work in dist.batch_isend_irecv(operations):
                    work.wait()
        dist.all_reduce(gradients)

    return step


def one_forward_one_backward() -> Step:
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    stage = PipelineStage(torch.nn.Linear(16, 16), RANK, WORLD, torch.device("cpu"))
    schedule = Schedule1F1B(stage, n_microbatches=2 * WORLD, loss_fn=torch.nn.functional.mse_loss)
    optimizer = torch.optim.SGD(stage.submod.parameters(), lr=1e-3)
    batch = torch.randn(4 * WORLD, 16)

    def step(_: int) -> None:
        optimizer.zero_grad()
        given = (batch,) if RANK == 0 else ()
        schedule.step(*given, **({"target": torch.randn(4 * WORLD, 16)} if RANK == WORLD - 1 else {}))
        optimizer.step()

    return step


def _train(model: torch.nn.Module) -> Step:
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    def step(_: int) -> None:
        optimizer.zero_grad()
        model(torch.randn(8, 64)).sum().backward()
        optimizer.step()

    return step


def accumulate() -> Step:
    """Three passes of four stay local."""
    model = torch.nn.parallel.DistributedDataParallel(_layers())
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    def step(number: int) -> None:
        with model.no_sync() if number % 4 < 3 else contextlib.nullcontext():
            model(torch.randn(8, 64)).sum().backward()
        if number % 4 == 3:
            optimizer.step()
            optimizer.zero_grad()

    return step


def join() -> Step:
    """Uneven inputs: a rank has more batches a round, and the others shadow its collectives."""
    from torch.distributed.algorithms.join import Join

    model = torch.nn.parallel.DistributedDataParallel(_layers())
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    def step(number: int) -> None:
        with Join([model]):
            for _ in range(1 + (number % WORLD == RANK)):
                optimizer.zero_grad()
                model(torch.randn(8, 64)).sum().backward()
                optimizer.step()

    return step


def averaging() -> Step:
    """Local steps, and the mean of the weights each tenth."""
    model = _layers()
    local = _train(model)

    def step(number: int) -> None:
        local(number)
        if number % 10 == 9:
            for each in model.parameters():
                dist.all_reduce(each.data)

    return step


def functional() -> Step:
    """torch's functional collectives, which compiled programs are made of."""
    from torch.distributed import _functional_collectives as functions

    values = torch.zeros(WORLD * 256)

    def step(_: int) -> None:
        summed = functions.all_reduce(values, "sum", dist.group.WORLD)
        part = functions.reduce_scatter_tensor(summed + 1, "sum", 0, dist.group.WORLD)
        (functions.all_gather_tensor(part, 0, dist.group.WORLD) * 2).sum().item()

    return step


def tensor_parallel() -> Step:
    """DTensor: a layer cut by columns, the next by rows."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    mesh = init_device_mesh("cpu", (WORLD,))
    model = torch.nn.Sequential(torch.nn.Linear(48, 96), torch.nn.ReLU(), torch.nn.Linear(96, 48))
    model = parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    def step(_: int) -> None:
        optimizer.zero_grad()
        model(torch.ones(8, 48)).sum().backward()
        optimizer.step()

    return step


def scattered() -> Step:
    """One rank reads the data for all; results are gathered there."""
    mine, found = torch.zeros(1024), torch.zeros(1024)

    def step(_: int) -> None:
        dist.scatter(mine, [torch.zeros(1024) for _ in range(WORLD)] if RANK == 0 else None, src=0)
        dist.gather(mine, [found.clone() for _ in range(WORLD)] if RANK == 0 else None, dst=0)
        dist.barrier()

    return step


def two_meshes() -> Step:
    """FSDP2 over two dimensions: copies of shards."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (2, WORLD // 2), mesh_dim_names=("copies", "shards"))
    model = _layers()
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return _train(model)


BY_NAME: dict[str, Callable[[], Step]] = {
    "context": context, "1f1b": one_forward_one_backward, "accumulate": accumulate, "join": join, "averaging": averaging,
    "functional": functional, "tensor": tensor_parallel, "scattered": scattered, "hsdp": two_meshes,
}  # fmt: skip
