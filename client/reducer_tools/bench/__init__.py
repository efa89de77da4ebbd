"""``reducer bench``: measures running reducers and prints a table like nccl-tests.

``sweep`` has the options of a measurement, ``pattern`` the data and the expected results, ``rank``
measures as one rank of a job, ``workers`` starts ranks on this host, ``display``, ``table`` and
``progress`` print the ``events`` of rank 0, and ``ring_comparison`` compares the times with a
ring's.
"""
