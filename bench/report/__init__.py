"""Tables and plots of what `bench.allreduce` has measured.

python -m bench.report results.jsonl --plot out.png
"""
