"""Tables and plots of the results of `bench.allreduce`.

python -m bench.report results.jsonl --plot out.png
"""
