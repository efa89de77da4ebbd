"""Training BERT-shaped transformers by DDP on hosts with limited NICs: reducers and gloo.

    python -m bench.training --workers 8 --rates 100mbit
    python -m bench.training --workers 4 --rates 1gbit --batch 16 --sequence 64    # computation
    python -m bench.training --loopback --workers 2 --device cuda --size 110m \\
        --contenders gloo,nccl,reducers,reducers-bf16                              # on a GPU
    python -m bench.training.report *.jsonl --plot training.png        # several runs in one picture

Each worker process has one model for each contender, with the same initial parameters, and trains
the models in turn on the same passages. After ``warmup`` steps, each contender runs ``blocks``
blocks of ``steps`` steps; the order is reversed from block to block. A step is forward, backward
with the exchange of gradients, and the optimizer. The report has medians over blocks:

step
    Seconds from the slowest rank's end of one step to the slowest rank's end of the next, mean of
    a block; blocks begin at a common barrier.
compute
    The same for another model, which trains under ``no_sync`` on **all** workers at the same time.
    Workers share the machine's cores, so one worker alone would compute faster.
exposed
    ``step - compute``: communication that is not hidden by computation.
efficiency
    ``compute / step``: samples/s of W workers divided by W times the samples/s of one worker that
    only computes while the other workers compute, too.

With ``--device cuda`` the models are on the GPU: rank r takes device r modulo their number. Workers
that share a GPU take turns on it, so a step then computes for longer than on a GPU of its own, and
NCCL, whose kernels of all ranks must run at once, is much slower than it would be. Each worker
passes for a host of its own, so that NCCL uses TCP over loopback, as the other contenders do.

A run is valid only if, for each contender, all ranks end with the same bits in all parameters, and
the last losses equal gloo's.
"""
