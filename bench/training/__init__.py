"""Training BERT-shaped transformers by DDP on hosts with limited NICs: reducers beside gloo.

    python -m bench.training --workers 8 --rates 100mbit
    python -m bench.training --workers 4 --rates 1gbit --batch 16 --sequence 64    # computation
    python -m bench.training.report *.jsonl --plot training.png        # several runs in one picture

Each worker process holds one model for each contender, with the same first parameters, and trains
them in turn on the same passages: ``blocks`` blocks of ``steps`` steps for each contender, the
order reversed from block to block, after ``warmup`` steps each. A step is forward, backward with
the exchange of gradients, and the optimizer. What is reported, medians over blocks:

step
    Seconds from the slowest rank's end of one step to the slowest rank's end of the next, mean of
    a block; blocks begin at a common barrier.
compute
    The same for a model of its own that trains under ``no_sync``, on **all** workers at the same
    time: they share the machine's cores, so a worker alone would compute faster than it ever can
    beside the others.
exposed
    ``step - compute``: communication that no computation hides.
efficiency
    ``compute / step``: samples/s of W workers over W times the samples/s of one worker that only
    computes, on this machine, as busy as it is.

A run counts only if, for each contender, all ranks end with the same parameters, bit for bit, and
its last losses are those of gloo.
"""
