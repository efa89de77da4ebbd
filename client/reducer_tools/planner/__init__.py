"""Computes how many reducers pay off, with a model of times, bytes and prices. No I/O.

``network_time`` is the model. ``reducer_count`` says how many dedicated reducers are enough, and
``cost`` up to which price they pay off. ``plan`` puts these numbers together for a cluster, and
``conclusions`` says them in sentences.

``slow_link`` models how long machines behind a slow link wait, with data parallel training and with
DiLoCo. ``link_plan`` chooses the method, and ``link_conclusions`` says why.
"""
