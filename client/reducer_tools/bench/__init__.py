"""What ``reducer bench`` runs: a table in the manner of nccl-tests, against running reducers.

``sweep`` says what to measure, ``pattern`` what is sent and must come back, ``rank`` measures as
one rank of a job, ``workers`` starts ranks on this host, ``table`` and ``progress`` show it.
"""
