"""What `deploy/gpu-proof.sh` runs beside `bench.training`: checks, copies, scaling, the summary.

python -m bench.gpu.checks                  # driver, torch, NCCL, kernel; exit status 3: no GPU
python -m bench.gpu.copies                  # GB/s between device and host, by size of the slices
python -m bench.gpu.scaling                 # all-reduces by number of workers and lanes; no GPU
python -m bench.gpu.summary FOLDER          # the table of what ran, and what is missing
"""
